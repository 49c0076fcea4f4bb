//! Metas, pages and elements of a bbolt file, byte for byte.
//!
//! All numbers little-endian; tests/facts/storage.md, section 1. Decoding takes
//! slices of the right length and never panics on their content.

/// Bytes before the elements of a page.
pub const PAGE_HEAD: usize = 16;
/// Bytes of an element, leaf or branch.
pub const ELEMENT: usize = 16;
/// Root page and sequence: what a bucket's value begins with.
pub const BUCKET_HEAD: usize = 16;
/// Bytes of a meta behind its page head.
pub const META: usize = 64;

pub const BRANCH: u16 = 0x01;
pub const LEAF: u16 = 0x02;
const META_FLAG: u16 = 0x04;
/// Flag of a leaf element whose value is a bucket.
pub const BUCKET: u32 = 0x01;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
/// In place of the free list's page: none was written.
const NO_FREE_LIST: u64 = u64::MAX;

/// Page sizes that may be: real ones are 1024 to 65536, twice as far is looked.
pub const PAGE_SIZE_MIN: u32 = 1024;
pub const PAGE_SIZE_MAX: u32 = PAGE_SIZE_MIN << 14;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// FNV-1a, 64 bits.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The head of a database; two of them, the valid one with the higher txid counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    pub page_size: u32,
    /// Top page of the tree of buckets.
    pub root: u64,
    /// First page never used.
    pub high_water: u64,
    pub txid: u64,
}

/// What 64 bytes in a meta's place are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaRead {
    Valid(Meta),
    /// A meta's magic with its bytes the other way round.
    OtherByteOrder,
    Invalid,
}

impl Meta {
    /// `bytes`: a page's, at least its head and a meta.
    pub fn decode(bytes: &[u8]) -> MetaRead {
        let Some(meta) = bytes.get(PAGE_HEAD..PAGE_HEAD + META) else { return MetaRead::Invalid };
        let magic = u32_at(meta, 0);
        if magic == MAGIC.swap_bytes() {
            return MetaRead::OtherByteOrder;
        }
        let page_size = u32_at(meta, 8);
        let fits = page_size.is_power_of_two() && (PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&page_size);
        if magic != MAGIC || u32_at(meta, 4) != VERSION || u64_at(meta, 56) != fnv(&meta[..56]) || !fits {
            return MetaRead::Invalid;
        }
        MetaRead::Valid(Meta {
            page_size,
            root: u64_at(meta, 16),
            high_water: u64_at(meta, 40),
            txid: u64_at(meta, 48),
        })
    }

    /// Makes the checksum of the meta at the front of a file match, if there is one.
    pub fn seal(file: &mut [u8]) {
        let Some(meta) = file.get_mut(PAGE_HEAD..PAGE_HEAD + META) else { return };
        let checksum = fnv(&meta[..56]);
        meta[56..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// The whole page `id` (0 or 1) with this meta.
    pub fn encode(&self, id: u64) -> Vec<u8> {
        let mut out = head(id, META_FLAG, 0, 0).to_vec();
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.page_size.to_le_bytes());
        out.extend_from_slice(&0_u32.to_le_bytes());
        for number in [self.root, 0, NO_FREE_LIST, self.high_water, self.txid] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = fnv(&out[PAGE_HEAD..]);
        out.extend_from_slice(&checksum.to_le_bytes());
        assert_eq!(out.len(), PAGE_HEAD + META, "a meta has its size");
        out.resize(self.page_size as usize, 0);
        out
    }
}

/// The first 16 bytes of a page.
pub fn head(id: u64, flags: u16, count: u16, overflow: u32) -> [u8; PAGE_HEAD] {
    let mut out = [0; PAGE_HEAD];
    out[..8].copy_from_slice(&id.to_le_bytes());
    out[8..10].copy_from_slice(&flags.to_le_bytes());
    out[10..12].copy_from_slice(&count.to_le_bytes());
    out[12..].copy_from_slice(&overflow.to_le_bytes());
    out
}

/// A page's head as read.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub id: u64,
    pub flags: u16,
    pub count: u16,
    /// Pages that follow and belong to this one.
    pub overflow: u32,
}

impl Head {
    /// `bytes`: at least [`PAGE_HEAD`].
    pub fn decode(bytes: &[u8]) -> Head {
        Head {
            id: u64_at(bytes, 0),
            flags: u16_at(bytes, 8),
            count: u16_at(bytes, 10),
            overflow: u32_at(bytes, 12),
        }
    }
}

/// An element of a leaf; `at` is counted from the element's first byte.
#[derive(Clone, Copy, Debug)]
pub struct LeafElement {
    pub flags: u32,
    pub at: u32,
    pub key: u32,
    pub value: u32,
}

impl LeafElement {
    /// `bytes`: [`ELEMENT`] of them.
    pub fn decode(bytes: &[u8]) -> LeafElement {
        LeafElement {
            flags: u32_at(bytes, 0),
            at: u32_at(bytes, 4),
            key: u32_at(bytes, 8),
            value: u32_at(bytes, 12),
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.flags, self.at, self.key, self.value] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// An element of a branch.
#[derive(Clone, Copy, Debug)]
pub struct BranchElement {
    pub at: u32,
    pub key: u32,
    pub child: u64,
}

impl BranchElement {
    /// `bytes`: [`ELEMENT`] of them.
    pub fn decode(bytes: &[u8]) -> BranchElement {
        BranchElement { at: u32_at(bytes, 0), key: u32_at(bytes, 4), child: u64_at(bytes, 8) }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.at.to_le_bytes());
        out.extend_from_slice(&self.key.to_le_bytes());
        out.extend_from_slice(&self.child.to_le_bytes());
    }
}
