//! Sorted keys in one buffer, as the nodes of the tree hold them.
//!
//! **Promises**: two allocations however many keys there are, and slack of an
//! eighth at most once it is large.

/// Bytes by which the buffer grows at least.
const GROW_BYTES: usize = 64;
/// Positions by which the list of ends grows.
const GROW_KEYS: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Keys {
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`.
    ends: Vec<u32>,
}

impl Keys {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all keys together.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn start(&self, position: usize) -> usize {
        if position == 0 { 0 } else { self.ends[position - 1] as usize }
    }

    pub fn get(&self, position: usize) -> &[u8] {
        &self.bytes[self.start(position)..self.ends[position] as usize]
    }

    pub fn last(&self) -> Option<&[u8]> {
        self.len().checked_sub(1).map(|last| self.get(last))
    }

    /// The position of `key`, or the one at which it would stand.
    pub fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.get(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// How many keys are below `key`, or at it if `inclusive`.
    pub fn below(&self, key: &[u8], inclusive: bool) -> usize {
        match self.search(key) {
            Ok(position) => position + usize::from(inclusive),
            Err(position) => position,
        }
    }

    pub fn insert(&mut self, position: usize, key: &[u8]) {
        let at = self.start(position);
        let length = u32::try_from(key.len()).expect("a key is far below 4 GiB");
        u32::try_from(self.bytes.len() + key.len()).expect("the keys of a node are far below 4 GiB");
        if self.bytes.capacity() - self.bytes.len() < key.len() {
            self.bytes.reserve_exact(key.len() + (self.bytes.len() / 8).max(GROW_BYTES));
        }
        if self.ends.len() == self.ends.capacity() {
            self.ends.reserve_exact(GROW_KEYS);
        }
        let behind = self.bytes.len() - at;
        self.bytes.extend_from_slice(key);
        if behind > 0 {
            self.bytes[at..].rotate_right(key.len());
        }
        self.ends.insert(position, at as u32);
        for end in &mut self.ends[position..] {
            *end += length;
        }
    }

    pub fn remove(&mut self, position: usize) {
        let (start, end) = (self.start(position), self.ends[position] as usize);
        self.bytes.drain(start..end);
        self.ends.remove(position);
        for later in &mut self.ends[position..] {
            *later -= (end - start) as u32;
        }
    }

    /// The keys from `position` on; both parts take the room that they need.
    pub fn split_off(&mut self, position: usize) -> Keys {
        let at = self.start(position);
        let bytes = self.bytes[at..].to_vec();
        let ends = self.ends[position..].iter().map(|end| end - at as u32).collect();
        self.bytes.truncate(at);
        self.ends.truncate(position);
        self.shrink();
        Keys { bytes, ends }
    }

    /// Adds keys that all stand behind the last one.
    pub fn append(&mut self, keys: &Keys) {
        let at = self.bytes.len();
        u32::try_from(at + keys.bytes.len()).expect("the keys of a node are far below 4 GiB");
        self.bytes.reserve_exact(keys.bytes.len());
        self.bytes.extend_from_slice(&keys.bytes);
        self.ends.reserve_exact(keys.ends.len());
        self.ends.extend(keys.ends.iter().map(|end| end + at as u32));
    }

    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_moved_and_removed() {
        let mut keys = Keys::default();
        for key in ["d", "", "bb", "a", "ccc"] {
            let position = keys.search(key.as_bytes()).unwrap_err();
            keys.insert(position, key.as_bytes());
        }
        let all = |keys: &Keys| (0..keys.len()).map(|at| keys.get(at).to_vec()).collect::<Vec<_>>();
        assert_eq!(all(&keys), [&b""[..], b"a", b"bb", b"ccc", b"d"]);
        assert_eq!((keys.search(b"bb"), keys.search(b"c")), (Ok(2), Err(3)));
        assert_eq!((keys.below(b"bb", false), keys.below(b"bb", true), keys.below(b"z", true)), (2, 3, 5));
        keys.remove(1);
        let tail = keys.split_off(2);
        assert_eq!(
            (all(&keys), all(&tail)),
            (vec![b"".to_vec(), b"bb".to_vec()], vec![b"ccc".to_vec(), b"d".to_vec()])
        );
        keys.append(&tail);
        assert_eq!(all(&keys), [&b""[..], b"bb", b"ccc", b"d"]);
        assert_eq!((keys.last(), keys.bytes()), (Some(&b"d"[..]), 6));
    }
}
