//! A counted B+ tree: byte-string keys in order, and how many of their values
//! count in any range in O(log n).
//!
//! Leaves are packed: the keys of a leaf share one buffer (`keys.rs`), so that
//! a key costs its bytes, its value, four bytes, and a few more for its share
//! of the leaf. Branches keep the shortest keys that tell their children apart,
//! and for each child how many of its values count.
//!
//! **Promises**: all leaves at one depth; a node that has become small joins
//! its neighbour as soon as both fit in one.

use super::keys::Keys;
use std::ops::Bound;

/// What a tree counts.
pub(super) trait Counts {
    fn counts(&self) -> bool;
}

/// Keys of a leaf, and children of a branch, at most.
const WIDTH: usize = 64;
/// A node with fewer is joined with a neighbour when there is room.
const NARROW: usize = WIDTH / 4;
/// A leaf with more bytes of keys is split too, so that an insertion moves little.
const LEAF_KEY_BYTES: usize = 16 << 10;
/// Values by which a leaf's list of them grows: slack counts against the bytes a key may cost.
const GROW_VALUES: usize = 4;

#[derive(Debug)]
pub(super) struct Tree<V> {
    root: Child<V>,
    keys: usize,
}

#[derive(Debug)]
struct Child<V> {
    /// Values below that count.
    count: u64,
    node: Node<V>,
}

#[derive(Debug)]
enum Node<V> {
    Leaf(Box<Leaf<V>>),
    Branch(Box<Branch<V>>),
}

#[derive(Debug)]
struct Leaf<V> {
    keys: Keys,
    values: Vec<V>,
}

#[derive(Debug)]
struct Branch<V> {
    /// `separators[i]` is above every key of child i and at or below every key of child i + 1.
    separators: Keys,
    children: Vec<Child<V>>,
}

/// What became of a node that took a key.
struct Edited<V> {
    change: i64,
    inserted: bool,
    /// The part that was split off, and the key from which on it stands.
    split: Option<(Vec<u8>, Child<V>)>,
}

pub(super) type Bounds<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

impl<V> Default for Tree<V> {
    fn default() -> Self {
        let leaf = Leaf { keys: Keys::default(), values: Vec::new() };
        Tree { root: Child { count: 0, node: Node::Leaf(Box::new(leaf)) }, keys: 0 }
    }
}

impl<V: Counts> Tree<V> {
    pub fn len(&self) -> usize {
        self.keys
    }

    /// Values that count.
    pub fn count(&self) -> u64 {
        self.root.count
    }

    /// Values that count in a range.
    pub fn count_range(&self, (from, to): Bounds<'_>) -> u64 {
        let from = match from {
            Bound::Unbounded => 0,
            Bound::Included(key) => self.count_below(key, false),
            Bound::Excluded(key) => self.count_below(key, true),
        };
        let to = match to {
            Bound::Unbounded => self.count(),
            Bound::Included(key) => self.count_below(key, true),
            Bound::Excluded(key) => self.count_below(key, false),
        };
        to.saturating_sub(from)
    }

    /// Values that count below `key`, at it too if `inclusive`.
    fn count_below(&self, key: &[u8], inclusive: bool) -> u64 {
        let (mut child, mut count) = (&self.root, 0);
        loop {
            match &child.node {
                Node::Leaf(leaf) => {
                    let end = leaf.keys.below(key, inclusive);
                    return count + counted(&leaf.values[..end]);
                }
                Node::Branch(branch) => {
                    let at = branch.child_of(key);
                    count += branch.children[..at].iter().map(|child| child.count).sum::<u64>();
                    child = &branch.children[at];
                }
            }
        }
    }

    pub fn get(&self, key: &[u8]) -> Option<&V> {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// The key as it is stored, and its value.
    pub fn get_key_value(&self, key: &[u8]) -> Option<(&[u8], &V)> {
        let mut child = &self.root;
        loop {
            match &child.node {
                Node::Leaf(leaf) => {
                    let at = leaf.keys.search(key).ok()?;
                    return Some((leaf.keys.get(at), &leaf.values[at]));
                }
                Node::Branch(branch) => child = &branch.children[branch.child_of(key)],
            }
        }
    }

    /// Shows `edit` the value of `key`; where there is none, what it returns is put there.
    pub fn edit(&mut self, key: &[u8], edit: impl FnOnce(Option<&mut V>) -> Option<V>) {
        let edited = self.root.edit(key, edit);
        self.keys += usize::from(edited.inserted);
        if let Some((separator, right)) = edited.split {
            let empty = Node::Leaf(Box::new(Leaf { keys: Keys::default(), values: Vec::new() }));
            let left = std::mem::replace(&mut self.root, Child { count: 0, node: empty });
            let count = left.count + right.count;
            let mut separators = Keys::default();
            separators.insert(0, &separator);
            let branch = Branch { separators, children: vec![left, right] };
            self.root = Child { count, node: Node::Branch(Box::new(branch)) };
        }
    }

    /// Adds keys in order, none of which is there.
    pub fn insert_run(&mut self, keys: &Keys, values: Vec<V>) {
        assert_eq!(keys.len(), values.len(), "each key has a value");
        let mut values = values.into_iter();
        let mut at = 0;
        while at < keys.len() {
            // Most go behind the last one, as far as there is room in its leaf.
            let (taken, _) = self.root.fill(None, keys, at, &mut values);
            self.keys += taken;
            at += taken;
            if taken == 0 {
                self.edit(keys.get(at), |before| {
                    assert!(before.is_none(), "the key is not there");
                    values.next()
                });
                at += 1;
            }
        }
    }

    pub fn remove(&mut self, key: &[u8]) -> Option<V> {
        let value = self.root.remove(key)?;
        self.keys -= 1;
        while let Node::Branch(branch) = &mut self.root.node {
            if branch.children.len() > 1 {
                break;
            }
            self.root = branch.children.pop().expect("a branch has a child");
        }
        Some(value)
    }

    /// Shows `visit` the keys of a range in order until it returns false; it may change what a value counts.
    pub fn visit(&mut self, (from, to): Bounds<'_>, mut visit: impl FnMut(&[u8], &mut V) -> bool) {
        self.root.visit(from, to, &mut visit);
    }

    /// The keys of a range in order.
    pub fn range<'t, 'k>(&'t self, (from, to): Bounds<'k>) -> Iter<'t, 'k, V> {
        let mut iter = Iter { stack: Vec::new(), leaf: None, to };
        let mut child = &self.root;
        loop {
            match &child.node {
                Node::Leaf(leaf) => {
                    let at = match from {
                        Bound::Unbounded => 0,
                        Bound::Included(key) => leaf.keys.below(key, false),
                        Bound::Excluded(key) => leaf.keys.below(key, true),
                    };
                    iter.enter(leaf, at);
                    return iter;
                }
                Node::Branch(branch) => {
                    let at = branch.first_child(from);
                    iter.stack.push((branch, at + 1));
                    child = &branch.children[at];
                }
            }
        }
    }
}

fn counted<V: Counts>(values: &[V]) -> u64 {
    values.iter().filter(|value| value.counts()).count() as u64
}

impl<V> Branch<V> {
    fn child_of(&self, key: &[u8]) -> usize {
        self.separators.below(key, true)
    }

    fn first_child(&self, from: Bound<&[u8]>) -> usize {
        match from {
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => self.child_of(key),
        }
    }
}

impl<V: Counts> Child<V> {
    fn leaf(leaf: Leaf<V>) -> Child<V> {
        Child { count: counted(&leaf.values), node: Node::Leaf(Box::new(leaf)) }
    }

    fn branch(branch: Branch<V>) -> Child<V> {
        let count = branch.children.iter().map(|child| child.count).sum();
        Child { count, node: Node::Branch(Box::new(branch)) }
    }

    fn shift(&mut self, change: i64) {
        self.count = self.count.checked_add_signed(change).expect("no more is taken out than was counted");
    }

    fn edit(&mut self, key: &[u8], edit: impl FnOnce(Option<&mut V>) -> Option<V>) -> Edited<V> {
        let edited = match &mut self.node {
            Node::Leaf(leaf) => leaf.edit(key, edit),
            Node::Branch(branch) => {
                let at = branch.child_of(key);
                let Edited { change, inserted, split } = branch.children[at].edit(key, edit);
                let split = split.and_then(|(separator, right)| branch.take(at, &separator, right));
                Edited { change, inserted, split }
            }
        };
        self.shift(edited.change);
        if let Some((_, right)) = &edited.split {
            self.count -= right.count;
        }
        edited
    }

    /// Adds keys from position `at` on to the leaf of the first one while they are behind all of its keys
    /// and below `to`; returns how many, and how many of them count.
    fn fill(
        &mut self,
        to: Option<&[u8]>,
        keys: &Keys,
        at: usize,
        values: &mut std::vec::IntoIter<V>,
    ) -> (usize, u64) {
        let (taken, count) = match &mut self.node {
            Node::Leaf(leaf) => leaf.fill(to, keys, at, values),
            Node::Branch(branch) => {
                let child = branch.child_of(keys.get(at));
                let to =
                    if child < branch.separators.len() { Some(branch.separators.get(child)) } else { to };
                branch.children[child].fill(to, keys, at, values)
            }
        };
        self.count += count;
        (taken, count)
    }

    fn remove(&mut self, key: &[u8]) -> Option<V> {
        let value = match &mut self.node {
            Node::Leaf(leaf) => {
                let at = leaf.keys.search(key).ok()?;
                leaf.keys.remove(at);
                leaf.values.remove(at)
            }
            Node::Branch(branch) => {
                let at = branch.child_of(key);
                let value = branch.children[at].remove(key)?;
                branch.mend(at);
                value
            }
        };
        self.shift(-i64::from(value.counts()));
        Some(value)
    }

    /// Returns what changed and whether to go on.
    fn visit(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut impl FnMut(&[u8], &mut V) -> bool,
    ) -> (i64, bool) {
        let (mut change, mut goes_on) = (0, true);
        match &mut self.node {
            Node::Leaf(leaf) => {
                let (first, end) = leaf.positions(from, to);
                goes_on = end == leaf.values.len();
                for at in first..end {
                    let value = &mut leaf.values[at];
                    let before = i64::from(value.counts());
                    let more = visit(leaf.keys.get(at), value);
                    change += i64::from(value.counts()) - before;
                    if !more {
                        goes_on = false;
                        break;
                    }
                }
            }
            Node::Branch(branch) => {
                let first = branch.first_child(from);
                for child in &mut branch.children[first..] {
                    let (part, more) = child.visit(from, to, visit);
                    change += part;
                    if !more {
                        goes_on = false;
                        break;
                    }
                }
            }
        }
        self.shift(change);
        (change, goes_on)
    }

    fn size(&self) -> usize {
        match &self.node {
            Node::Leaf(leaf) => leaf.values.len(),
            Node::Branch(branch) => branch.children.len(),
        }
    }
}

impl<V: Counts> Leaf<V> {
    fn positions(&self, from: Bound<&[u8]>, to: Bound<&[u8]>) -> (usize, usize) {
        let first = match from {
            Bound::Unbounded => 0,
            Bound::Included(key) => self.keys.below(key, false),
            Bound::Excluded(key) => self.keys.below(key, true),
        };
        let end = match (to, self.keys.last()) {
            (Bound::Included(to), Some(last)) if last > to => self.keys.below(to, true),
            (Bound::Excluded(to), Some(last)) if last >= to => self.keys.below(to, false),
            _ => self.values.len(),
        };
        (first, end)
    }

    fn edit(&mut self, key: &[u8], edit: impl FnOnce(Option<&mut V>) -> Option<V>) -> Edited<V> {
        let at = match self.keys.search(key) {
            Ok(at) => {
                let value = &mut self.values[at];
                let before = i64::from(value.counts());
                let extra = edit(Some(value));
                assert!(extra.is_none(), "a key has one value");
                return Edited { change: i64::from(value.counts()) - before, inserted: false, split: None };
            }
            Err(at) => at,
        };
        let Some(value) = edit(None) else { return Edited { change: 0, inserted: false, split: None } };
        let change = i64::from(value.counts());
        if !self.is_full(key) {
            self.insert(at, key, value);
            return Edited { change, inserted: true, split: None };
        }
        // Keys that come in order, here or in the middle of the tree, leave full leaves behind them.
        let behind_all = at == self.values.len();
        let middle = if behind_all { at } else { self.values.len() / 2 };
        let mut right = Leaf { keys: self.keys.split_off(middle), values: self.values.split_off(middle) };
        self.values.shrink_to_fit();
        right.values.shrink_to_fit();
        match behind_all || at > middle {
            true => right.insert(at - middle, key, value),
            false => self.insert(at, key, value),
        }
        let left = self.keys.last().expect("both parts of a split leaf have keys");
        let separator = separator(left, right.keys.get(0)).to_vec();
        Edited { change, inserted: true, split: Some((separator, Child::leaf(right))) }
    }

    fn is_full(&self, key: &[u8]) -> bool {
        self.values.len() == WIDTH
            || (!self.values.is_empty() && self.keys.bytes() + key.len() > LEAF_KEY_BYTES)
    }

    /// See [`Child::fill`].
    fn fill(
        &mut self,
        to: Option<&[u8]>,
        keys: &Keys,
        at: usize,
        values: &mut std::vec::IntoIter<V>,
    ) -> (usize, u64) {
        if self.keys.last().is_some_and(|last| last >= keys.get(at)) {
            return (0, 0);
        }
        let (mut taken, mut count) = (0, 0);
        while at + taken < keys.len() {
            let key = keys.get(at + taken);
            if self.is_full(key) || to.is_some_and(|to| key >= to) {
                break;
            }
            let value = values.next().expect("each key has a value");
            count += u64::from(value.counts());
            self.insert(self.values.len(), key, value);
            taken += 1;
        }
        (taken, count)
    }

    fn insert(&mut self, at: usize, key: &[u8], value: V) {
        self.keys.insert(at, key);
        if self.values.len() == self.values.capacity() {
            self.values.reserve_exact(GROW_VALUES);
        }
        self.values.insert(at, value);
    }
}

/// The shortest key above `left` and at or below `right`.
fn separator<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    assert!(left < right, "keys ascend");
    let common = left.iter().zip(right).take_while(|(one, other)| one == other).count();
    &right[..common + 1]
}

impl<V: Counts> Branch<V> {
    /// Takes what was split off child `at`; returns what is split off this branch for it.
    fn take(&mut self, at: usize, separator: &[u8], right: Child<V>) -> Option<(Vec<u8>, Child<V>)> {
        self.separators.insert(at, separator);
        self.children.insert(at + 1, right);
        if self.children.len() <= WIDTH {
            return None;
        }
        // As in a leaf: what comes in order leaves full branches behind it.
        let middle = if at + 2 == self.children.len() { at + 1 } else { self.children.len() / 2 };
        let children = self.children.split_off(middle);
        let separators = self.separators.split_off(middle);
        let between = self.separators.get(middle - 1).to_vec();
        self.separators.remove(middle - 1);
        Some((between, Child::branch(Branch { separators, children })))
    }

    /// Joins child `at` with a neighbour if it has become small and both fit in one node.
    fn mend(&mut self, at: usize) {
        if self.children[at].size() >= NARROW || self.children.len() == 1 {
            return;
        }
        let left = if at + 1 < self.children.len() { at } else { at - 1 };
        if self.children[left].size() + self.children[left + 1].size() > WIDTH {
            return;
        }
        match (&self.children[left].node, &self.children[left + 1].node) {
            (Node::Leaf(one), Node::Leaf(other)) => {
                let bytes = one.keys.bytes() + other.keys.bytes();
                if bytes > LEAF_KEY_BYTES && !one.values.is_empty() && !other.values.is_empty() {
                    return;
                }
            }
            (Node::Branch(_), Node::Branch(_)) => {}
            _ => unreachable!("all leaves are at one depth"),
        }
        let right = self.children.remove(left + 1);
        let child = &mut self.children[left];
        child.count += right.count;
        match (&mut child.node, right.node) {
            (Node::Leaf(one), Node::Leaf(mut other)) => {
                one.keys.append(&other.keys);
                one.values.reserve_exact(other.values.len());
                one.values.append(&mut other.values);
            }
            (Node::Branch(one), Node::Branch(mut other)) => {
                one.separators.insert(one.separators.len(), self.separators.get(left));
                one.separators.append(&other.separators);
                one.children.append(&mut other.children);
            }
            _ => unreachable!("all leaves are at one depth"),
        }
        self.separators.remove(left);
    }
}

/// See [`Tree::range`].
pub(super) struct Iter<'t, 'k, V> {
    /// Branches on the way down, each with the child that comes next.
    stack: Vec<(&'t Branch<V>, usize)>,
    /// The leaf that is walked, the position that comes next and the one to stop at.
    leaf: Option<(&'t Leaf<V>, usize, usize)>,
    to: Bound<&'k [u8]>,
}

impl<'t, V: Counts> Iter<'t, '_, V> {
    fn enter(&mut self, leaf: &'t Leaf<V>, at: usize) {
        let (_, end) = leaf.positions(Bound::Unbounded, self.to);
        if end < leaf.values.len() {
            // The range ends in this leaf.
            self.stack.clear();
        }
        self.leaf = Some((leaf, at, end));
    }

    /// Goes to the next leaf.
    fn advance(&mut self) -> bool {
        while let Some((branch, next)) = self.stack.last_mut() {
            let Some(child) = branch.children.get(*next) else {
                self.stack.pop();
                continue;
            };
            *next += 1;
            let mut node = &child.node;
            loop {
                match node {
                    Node::Leaf(leaf) => {
                        self.enter(leaf, 0);
                        return true;
                    }
                    Node::Branch(branch) => {
                        self.stack.push((branch, 1));
                        node = &branch.children[0].node;
                    }
                }
            }
        }
        self.leaf = None;
        false
    }
}

impl<'t, V: Counts> Iterator for Iter<'t, '_, V> {
    type Item = (&'t [u8], &'t V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (leaf, at, end) = self.leaf.as_mut()?;
            if *at < *end {
                let (leaf, position) = (*leaf, *at);
                *at += 1;
                return Some((leaf.keys.get(position), &leaf.values[position]));
            }
            if !self.advance() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
