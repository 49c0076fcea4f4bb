//! A database from records that come in order, bottom up, in bounded memory.
//!
//! The metas stand first in the file and name the root and the number of pages,
//! so the same records come twice: a [`Planner`] takes their lengths, a
//! [`Writer`] their bytes. Both lay pages by the same code, so that they agree.
//!
//! Pages get their numbers in the order in which they become full: leaves from
//! left to right, a branch behind the last of its children, the buckets' own
//! tree last. Pages are filled to the brim. A record that is larger than a page
//! lies alone in a leaf with overflow pages. A branch has two children at least.

use super::{
    KEY_BYTES_MAX,
    page::{
        BRANCH, BUCKET, BUCKET_HEAD, BranchElement, ELEMENT, LEAF, LeafElement, Meta, PAGE_HEAD,
        PAGE_SIZE_MAX, PAGE_SIZE_MIN, head,
    },
};

/// Where the metas, the root and the end will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    page_size: u32,
    root: u64,
    high_water: u64,
}

impl Plan {
    /// Length of the file.
    pub fn total_bytes(&self) -> u64 {
        self.high_water * u64::from(self.page_size)
    }
}

/// The records that were written are not those that were planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the data changed between the two passes over it")]
pub struct PlanMismatch;

/// First pass: lengths.
pub struct Planner(Builder);

impl Planner {
    /// `page_size`: 4096 as etcd writes it on usual machines; a power of two.
    pub fn new(page_size: u32) -> Planner {
        Planner(Builder::new(page_size, None))
    }

    /// Begins a bucket; names ascend.
    pub fn bucket(&mut self, name: &[u8]) {
        self.0.bucket(name);
    }

    /// A record of the bucket that began last; keys ascend.
    pub fn record(&mut self, key: &[u8], value_bytes: usize) {
        self.0.record(key, value_bytes, &[]);
    }

    pub fn finish(self) -> Plan {
        self.0.finish().0
    }
}

/// Second pass: bytes. After each call [`Writer::take`] gives what is ready.
pub struct Writer {
    builder: Builder,
    plan: Plan,
}

impl Writer {
    /// `txid`: the number of the last commit, at least 1.
    pub fn new(plan: Plan, txid: u64) -> Writer {
        assert!(txid > 0, "commits count from 1");
        let Plan { page_size, root, high_water } = plan;
        let meta = |txid| Meta { page_size, root, high_water, txid };
        // As a snapshot made by etcd has them.
        let metas = [meta(txid).encode(0), meta(txid - 1).encode(1)].concat();
        Writer { builder: Builder::new(page_size, Some(metas)), plan }
    }

    /// See [`Planner::bucket`].
    pub fn bucket(&mut self, name: &[u8]) {
        self.builder.bucket(name);
    }

    /// See [`Planner::record`].
    pub fn record(&mut self, key: &[u8], value: &[u8]) {
        self.builder.record(key, value.len(), value);
    }

    /// Bytes that follow those taken before; may be none.
    pub fn take(&mut self) -> Vec<u8> {
        self.builder.sheet.out.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The last bytes. The file is as long as planned, or it is an error.
    pub fn finish(self) -> Result<Vec<u8>, PlanMismatch> {
        let (plan, rest) = self.builder.finish();
        if plan == self.plan { Ok(rest) } else { Err(PlanMismatch) }
    }
}

/// Where pages go.
struct Sheet {
    page_size: usize,
    next_page: u64,
    /// `None`: only planned.
    out: Option<Vec<u8>>,
}

impl Sheet {
    /// Lays a page with `elements` and then `data`, of which `data_bytes` are planned; returns its number.
    fn lay(&mut self, flags: u16, count: usize, elements: &[u8], data_bytes: usize, data: &[u8]) -> u64 {
        let length = PAGE_HEAD + elements.len() + data_bytes;
        let pages = length.div_ceil(self.page_size);
        let (id, overflow) = (self.next_page, u32::try_from(pages - 1).expect("a record is below 4 GiB"));
        self.next_page += pages as u64;
        if let Some(out) = &mut self.out {
            assert_eq!(data.len(), data_bytes, "a page holds what was counted for it");
            let end = out.len() + pages * self.page_size;
            let count = u16::try_from(count).expect("a page has far fewer elements");
            out.extend_from_slice(&head(id, flags, count, overflow));
            out.extend_from_slice(elements);
            out.extend_from_slice(data);
            out.resize(end, 0);
        }
        id
    }

    fn plans(&self) -> bool {
        self.out.is_none()
    }
}

struct Builder {
    sheet: Sheet,
    buckets: Tree,
    /// The bucket that is being filled.
    open: Option<(Vec<u8>, Tree)>,
}

impl Builder {
    fn new(page_size: u32, out: Option<Vec<u8>>) -> Builder {
        assert!(
            page_size.is_power_of_two() && (PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&page_size),
            "a page size of bbolt"
        );
        let sheet = Sheet { page_size: page_size as usize, next_page: 2, out };
        Builder { sheet, buckets: Tree::default(), open: None }
    }

    fn bucket(&mut self, name: &[u8]) {
        self.close_bucket();
        self.open = Some((name.to_vec(), Tree::default()));
    }

    fn record(&mut self, key: &[u8], value_bytes: usize, value: &[u8]) {
        let (_, tree) = self.open.as_mut().expect("a bucket comes before its records");
        tree.add(&mut self.sheet, 0, key, value_bytes, value);
    }

    fn close_bucket(&mut self) {
        let Some((name, tree)) = self.open.take() else { return };
        let value = if tree.is_empty() {
            // Inline: no root, no sequence, then a leaf without elements.
            [&[0; BUCKET_HEAD][..], &head(0, LEAF, 0, 0)].concat()
        } else {
            let root = tree.finish(&mut self.sheet);
            [root.to_le_bytes(), [0; 8]].concat()
        };
        self.buckets.add(&mut self.sheet, BUCKET, &name, value.len(), &value);
    }

    fn finish(mut self) -> (Plan, Vec<u8>) {
        self.close_bucket();
        let root = self.buckets.finish(&mut self.sheet);
        let Sheet { page_size, next_page, out } = self.sheet;
        let plan = Plan { page_size: page_size as u32, root, high_water: next_page };
        (plan, out.unwrap_or_default())
    }
}

/// The open page of each level of one tree.
#[derive(Default)]
struct Tree {
    leaf: Leaf,
    /// Lowest first.
    branches: Vec<Branch>,
    last: Vec<u8>,
}

#[derive(Default)]
struct Leaf {
    /// Flags, length of key and of value.
    elements: Vec<(u32, u32, u32)>,
    first: Vec<u8>,
    data_bytes: usize,
    /// Empty while planning.
    data: Vec<u8>,
}

#[derive(Default)]
struct Branch {
    children: Vec<(Vec<u8>, u64)>,
    bytes: usize,
    /// A child for which the page has no room: it begins the next page once another child follows.
    waiting: Option<(Vec<u8>, u64)>,
}

impl Tree {
    fn is_empty(&self) -> bool {
        self.leaf.elements.is_empty() && self.branches.is_empty()
    }

    fn add(&mut self, sheet: &mut Sheet, flags: u32, key: &[u8], value_bytes: usize, value: &[u8]) {
        assert!(!key.is_empty() && key.len() <= KEY_BYTES_MAX, "a key has 1 to 32768 bytes");
        assert!(self.is_empty() || key > self.last.as_slice(), "keys ascend");
        let leaf = &self.leaf;
        let before = PAGE_HEAD + leaf.elements.len() * ELEMENT + leaf.data_bytes;
        if !leaf.elements.is_empty() && before + ELEMENT + key.len() + value_bytes > sheet.page_size {
            self.close_leaf(sheet);
        }
        self.last.clear();
        self.last.extend_from_slice(key);
        let leaf = &mut self.leaf;
        if leaf.elements.is_empty() {
            leaf.first = key.to_vec();
        }
        let value_length = u32::try_from(value_bytes).expect("a value is below 4 GiB");
        leaf.elements.push((flags, key.len() as u32, value_length));
        leaf.data_bytes += key.len() + value_bytes;
        if !sheet.plans() {
            leaf.data.extend_from_slice(key);
            leaf.data.extend_from_slice(value);
        }
    }

    /// Lays the open leaf; returns its first key and its number.
    fn lay_leaf(&mut self, sheet: &mut Sheet) -> (Vec<u8>, u64) {
        let Leaf { elements, first, data_bytes, data } = std::mem::take(&mut self.leaf);
        let count = elements.len();
        let mut heads = Vec::with_capacity(count * ELEMENT);
        let mut at = 0;
        for (position, (flags, key, value)) in elements.into_iter().enumerate() {
            let behind_elements = (count - position) * ELEMENT;
            let element = LeafElement { flags, at: offset(behind_elements + at), key, value };
            element.encode(&mut heads);
            at += key as usize + value as usize;
        }
        (first, sheet.lay(LEAF, count, &heads, data_bytes, &data))
    }

    fn close_leaf(&mut self, sheet: &mut Sheet) {
        let child = self.lay_leaf(sheet);
        self.add_child(sheet, 0, child);
    }

    fn add_child(&mut self, sheet: &mut Sheet, level: usize, child: (Vec<u8>, u64)) {
        if level == self.branches.len() {
            self.branches.push(Branch::default());
        }
        let branch = &mut self.branches[level];
        if let Some(waiting) = branch.waiting.take() {
            let full = branch.lay(sheet);
            branch.push(waiting);
            branch.push(child);
            self.add_child(sheet, level + 1, full);
        } else if branch.children.len() >= 2
            && PAGE_HEAD + branch.bytes + ELEMENT + child.0.len() > sheet.page_size
        {
            branch.waiting = Some(child);
        } else {
            branch.push(child);
        }
    }

    /// Lays what is open; returns the number of the top page.
    fn finish(mut self, sheet: &mut Sheet) -> u64 {
        if self.branches.is_empty() {
            return self.lay_leaf(sheet).1;
        }
        self.close_leaf(sheet);
        let mut level = 0;
        loop {
            let branch = &mut self.branches[level];
            if let Some(waiting) = branch.waiting.take() {
                if branch.children.len() > 2 {
                    // The last page takes one more, so that it has two.
                    let (key, page) = branch.children.pop().expect("there are three");
                    branch.bytes -= ELEMENT + key.len();
                    let full = branch.lay(sheet);
                    branch.push((key, page));
                    branch.push(waiting);
                    self.add_child(sheet, level + 1, full);
                } else {
                    branch.push(waiting);
                }
            }
            let child = self.branches[level].lay(sheet);
            level += 1;
            if level == self.branches.len() {
                return child.1;
            }
            self.add_child(sheet, level, child);
        }
    }
}

impl Branch {
    fn push(&mut self, child: (Vec<u8>, u64)) {
        self.bytes += ELEMENT + child.0.len();
        self.children.push(child);
    }

    /// Lays the page; returns its first key and its number.
    fn lay(&mut self, sheet: &mut Sheet) -> (Vec<u8>, u64) {
        let children = std::mem::take(&mut self.children);
        self.bytes = 0;
        assert!(children.len() >= 2, "a branch has two children at least");
        let count = children.len();
        let mut heads = Vec::with_capacity(count * ELEMENT);
        let mut data = Vec::new();
        for (position, (key, child)) in children.iter().enumerate() {
            let at = offset((count - position) * ELEMENT + data.len());
            BranchElement { at, key: key.len() as u32, child: *child }.encode(&mut heads);
            data.extend_from_slice(key);
        }
        let id = sheet.lay(BRANCH, count, &heads, data.len(), &data);
        let first = children.into_iter().next().expect("there are two");
        (first.0, id)
    }
}

fn offset(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a page with a record is below 4 GiB")
}
