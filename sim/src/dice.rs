//! The simulation's own random source: one ChaCha stream for each purpose.
//!
//! Streams are told apart by name, so that a draw more in one place moves
//! nothing anywhere else. **Never** reads the operating system's randomness.

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// A stream of draws.
#[derive(Clone, Debug)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The stream that `name` and `seed` stand for, on every machine and for ever.
    pub fn new(name: &str, seed: u64) -> Dice {
        assert!(!name.is_empty(), "a stream has a name");
        let mut key = [0u8; 32];
        // Four FNV-1a lanes with different offsets: a name's every byte reaches every word.
        for (lane, word) in key.chunks_exact_mut(8).enumerate() {
            let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ (lane as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            for byte in seed.to_le_bytes().iter().chain(name.as_bytes()) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
            word.copy_from_slice(&hash.to_le_bytes());
        }
        Dice(ChaCha8Rng::from_seed(key))
    }

    pub fn word(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `0..bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no element");
        // The bias of a plain product is below bound / 2^64.
        ((u128::from(self.word()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "a range has its ends in order");
        low + self.below((high - low).saturating_add(1))
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        assert!((0.0..=1.0).contains(&probability), "a probability lies between 0 and 1");
        // 53 bits: what a double holds.
        ((self.word() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    /// One of the elements.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// An index, each as likely as its weight; `None` if all weights are 0.
    pub fn weighted(&mut self, weights: &[u32]) -> Option<usize> {
        let total: u64 = weights.iter().map(|weight| u64::from(*weight)).sum();
        if total == 0 {
            return None;
        }
        let mut left = self.below(total);
        for (index, weight) in weights.iter().enumerate() {
            match left.checked_sub(u64::from(*weight)) {
                Some(rest) => left = rest,
                None => return Some(index),
            }
        }
        unreachable!("the draw is below the sum of the weights")
    }

    /// Puts the elements into a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// 32 bytes, to seed another generator.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        self.0.fill_bytes(&mut seed);
        seed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_name_and_by_seed_and_repeat() {
        let first = |name, seed| Dice::new(name, seed).word();
        assert_eq!(first("a", 1), first("a", 1));
        assert_ne!(first("a", 1), first("b", 1));
        assert_ne!(first("a", 1), first("a", 2));
    }

    #[test]
    fn weights_of_zero_are_never_drawn() {
        let mut dice = Dice::new("weights", 7);
        for _ in 0..200 {
            assert_eq!(dice.weighted(&[0, 3, 0]), Some(1));
        }
        assert_eq!(dice.weighted(&[0, 0]), None);
    }

    #[test]
    fn chance_holds_its_ends() {
        let mut dice = Dice::new("chance", 7);
        assert!((0..100).all(|_| dice.chance(1.0)));
        assert!((0..100).all(|_| !dice.chance(0.0)));
    }
}
