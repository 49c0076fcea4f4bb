//! See the owner's notes.
