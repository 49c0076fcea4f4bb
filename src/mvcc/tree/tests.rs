//! The tree against `BTreeMap`.

use super::*;
use proptest::{
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use std::collections::{BTreeMap, btree_map::Entry};

/// Counts when it is odd.
impl Counts for u32 {
    fn counts(&self) -> bool {
        self % 2 == 1
    }
}

impl<V: Counts> Tree<V> {
    /// Checks what every node promises.
    fn check(&self) {
        fn walk<V: Counts>(
            child: &Child<V>,
            from: Option<&[u8]>,
            to: Option<&[u8]>,
            depth: usize,
            depths: &mut Vec<usize>,
        ) -> usize {
            let inside = |key: &[u8]| from.is_none_or(|from| key >= from) && to.is_none_or(|to| key < to);
            match &child.node {
                Node::Leaf(leaf) => {
                    assert!(leaf.values.len() <= WIDTH && leaf.keys.len() == leaf.values.len());
                    for at in 0..leaf.keys.len() {
                        assert!(inside(leaf.keys.get(at)));
                        assert!(at == 0 || leaf.keys.get(at - 1) < leaf.keys.get(at));
                    }
                    assert_eq!(child.count, counted(&leaf.values));
                    depths.push(depth);
                    leaf.values.len()
                }
                Node::Branch(branch) => {
                    assert!(branch.children.len() <= WIDTH);
                    assert_eq!(branch.separators.len() + 1, branch.children.len());
                    assert_eq!(child.count, branch.children.iter().map(|child| child.count).sum::<u64>());
                    let mut keys = 0;
                    for (at, child) in branch.children.iter().enumerate() {
                        let low = if at == 0 { from } else { Some(branch.separators.get(at - 1)) };
                        let high =
                            if at == branch.separators.len() { to } else { Some(branch.separators.get(at)) };
                        keys += walk(child, low, high, depth + 1, depths);
                    }
                    keys
                }
            }
        }
        let mut depths = Vec::new();
        assert_eq!(walk(&self.root, None, None, 0, &mut depths), self.keys);
        assert!(depths.iter().all(|depth| *depth == depths[0]), "all leaves are at one depth");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put(Vec<u8>, u32),
    Remove(Vec<u8>),
    /// Adds to the values of a range, of so many keys at most.
    Add(Vec<u8>, Vec<u8>, usize),
    /// A run of keys in order, as from a checkpoint.
    Run(Vec<u8>, u16),
    RemoveRange(Vec<u8>, Vec<u8>),
    Count(Vec<u8>, Vec<u8>),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::collection::vec(0..6_u8, 0..5),
        1 => (any::<u8>(), 3_000..9_000_usize).prop_map(|(fill, size)| vec![fill; size]),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (key(), any::<u32>()).prop_map(|(key, value)| Op::Put(key, value)),
        3 => key().prop_map(Op::Remove),
        2 => (key(), key(), 1..200_usize).prop_map(|(from, to, keys)| Op::Add(from, to, keys)),
        1 => (key(), 1..400_u16).prop_map(|(key, count)| Op::Run(key, count)),
        1 => (key(), key()).prop_map(|(from, to)| Op::RemoveRange(from, to)),
        3 => (key(), key()).prop_map(|(from, to)| Op::Count(from, to)),
    ]
}

fn bounds<'a>(from: &'a [u8], to: &'a [u8]) -> Bounds<'a> {
    let end = if to.is_empty() { Bound::Unbounded } else { Bound::Excluded(to) };
    (Bound::Included(from), end)
}

fn within<'a>(
    model: &'a BTreeMap<Vec<u8>, u32>,
    from: &[u8],
    to: &[u8],
) -> impl Iterator<Item = (&'a [u8], u32)> {
    let (from, to) = (from.to_vec(), to.to_vec());
    model
        .iter()
        .filter(move |(key, _)| **key >= from && (to.is_empty() || **key < to))
        .map(|(key, value)| (&key[..], *value))
}

fn run(ops: &[Op]) {
    let (mut tree, mut model) = (Tree::default(), BTreeMap::new());
    let put = |tree: &mut Tree<u32>, model: &mut BTreeMap<Vec<u8>, u32>, key: &[u8], value: u32| {
        let old = model.insert(key.to_vec(), value);
        tree.edit(key, |stored| {
            assert_eq!(stored.as_deref().copied(), old);
            match stored {
                Some(stored) => {
                    *stored = value;
                    None
                }
                None => Some(value),
            }
        });
    };
    for op in ops {
        match op {
            Op::Put(key, value) => put(&mut tree, &mut model, key, *value),
            Op::Remove(key) => assert_eq!(tree.remove(key), model.remove(key)),
            Op::Add(from, to, keys) => {
                let mut left = *keys;
                tree.visit(bounds(from, to), |_, value| {
                    *value = value.wrapping_add(1);
                    left -= 1;
                    left > 0
                });
                let seen: Vec<Vec<u8>> =
                    within(&model, from, to).take(*keys).map(|(key, _)| key.to_vec()).collect();
                for key in seen {
                    let value = model.get_mut(&key).unwrap();
                    *value = value.wrapping_add(1);
                }
            }
            Op::Run(key, count) => {
                let (mut keys, mut values) = (Keys::default(), Vec::new());
                for number in 0..*count {
                    let key = [&key[..key.len().min(4)], &number.to_be_bytes()].concat();
                    if let Entry::Vacant(free) = model.entry(key) {
                        keys.insert(keys.len(), free.key());
                        values.push(u32::from(number));
                        free.insert(u32::from(number));
                    }
                }
                tree.insert_run(&keys, values);
            }
            Op::RemoveRange(from, to) => {
                let gone: Vec<Vec<u8>> = within(&model, from, to).map(|(key, _)| key.to_vec()).collect();
                for key in gone {
                    assert_eq!(tree.remove(&key), model.remove(&key));
                }
            }
            Op::Count(from, to) => {
                let counts = within(&model, from, to).filter(|(_, value)| value.counts()).count();
                assert_eq!(tree.count_range(bounds(from, to)), counts as u64);
                let walked = tree.range(bounds(from, to)).map(|(key, value)| (key, *value));
                assert!(walked.eq(within(&model, from, to)));
            }
        }
        tree.check();
        assert_eq!(tree.len(), model.len());
    }
    let all = (Bound::Unbounded, Bound::Unbounded);
    assert!(tree.range(all).eq(model.iter().map(|(key, value)| (&key[..], value))));
    for (key, value) in &model {
        assert_eq!(tree.get(key), Some(value));
    }
}

#[test]
fn a_tree_is_an_ordered_map_that_counts() {
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let check = |ops: Vec<Op>| {
        run(&ops);
        Ok(())
    };
    runner.run(&prop::collection::vec(op(), 1..120), check).unwrap();
}

#[test]
fn deep_trees_grow_in_any_order_and_shrink_to_nothing() {
    let scattered = |number: u32| number.wrapping_mul(0x9e37_79b1);
    for order in [|number| number, |number: u32| u32::MAX - number, scattered] {
        let mut tree = Tree::default();
        for number in 0..20_000_u32 {
            tree.edit(&order(number).to_be_bytes(), |_| Some(number));
        }
        tree.check();
        assert_eq!((tree.len(), tree.count()), (20_000, 10_000));
        for step in 0..20_000_u32 {
            let number = step * 7_919 % 20_000;
            assert_eq!(tree.remove(&order(number).to_be_bytes()), Some(number));
            if step % 1_000 == 0 {
                tree.check();
            }
        }
        tree.check();
        assert_eq!((tree.len(), tree.count()), (0, 0));
        assert!(matches!(tree.root.node, Node::Leaf(_)), "an empty tree is one leaf");
    }
}
