//! Where the planted mistakes of `sim/mutants/` are switched on.
//!
//! The product holds none of them: the patches replace this file's body in a
//! copy of the tree that `ci/gauntlet` builds.

/// Switches a planted mistake on for this process.
pub fn choose(name: &str) -> Result<(), String> {
    Err(format!("this build holds no planted mistake {name}: see sim/mutants/"))
}
