//! The one random source: ChaCha, seeded by the operating system in
//! production and by the seed in simulation.

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use std::sync::{Arc, Mutex};

/// A shared handle on one stream of random numbers.
#[derive(Clone)]
pub struct Rng(Arc<Mutex<ChaCha12Rng>>);

impl Rng {
    pub fn from_seed(seed: [u8; 32]) -> Rng {
        Rng(Arc::new(Mutex::new(ChaCha12Rng::from_seed(seed))))
    }

    pub fn next_u64(&self) -> u64 {
        self.0.lock().expect("no panic while the generator is locked").next_u64()
    }

    /// 128 random bits.
    pub fn next_u128(&self) -> u128 {
        u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())
    }

    /// Uniform in `0..bound`; `bound` must not be 0.
    pub fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no random element");
        // The bias of a plain product is below bound / 2^64.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}
