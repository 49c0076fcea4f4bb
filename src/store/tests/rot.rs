//! rot
