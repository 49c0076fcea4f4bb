//! A database in order: buckets by name, the records of each by key.
//!
//! **Promises**: no page is used twice, keys ascend strictly, each lies where
//! its branches say, every length is checked before it is followed. One step
//! reads what it hands out and no more than a window around it.

use super::{
    DEPTH_MAX, Error, KEY_BYTES_MAX, Source, VALUE_BYTES_MAX,
    page::{self, BRANCH, BUCKET, BUCKET_HEAD, BranchElement, ELEMENT, Head, LEAF, LeafElement, META, Meta},
};
use bytes::Bytes;
use page::{MetaRead, PAGE_HEAD, PAGE_SIZE_MAX, PAGE_SIZE_MIN};

/// Bytes of a page that are read at once.
const WINDOW: usize = 64 << 10;
/// Metas lie in the first two pages.
const FIRST_DATA_PAGE: u64 = 2;

/// A database whose head was read. Clones share the source as it shares itself.
#[derive(Clone)]
pub struct Database<S> {
    source: S,
    meta: Meta,
}

/// What a scan hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A bucket begins.
    Bucket(Bytes),
    /// A record of the bucket that began last.
    Record { key: Bytes, value: Bytes },
}

/// Which buckets a scan goes into.
#[derive(Clone, Copy, Debug)]
enum Which {
    All,
    Only(&'static [u8]),
    Without(&'static [u8]),
}

impl Which {
    fn takes(self, name: &[u8]) -> bool {
        match self {
            Which::All => true,
            Which::Only(only) => name == only,
            Which::Without(left_out) => name != left_out,
        }
    }
}

impl<S: Source + Clone> Database<S> {
    /// Reads the metas. [`Error::NoMeta`] when neither is valid, [`Error::Cut`]
    /// when pages in use lie behind the end.
    pub async fn open(source: S) -> Result<Database<S>, Error> {
        let meta = find_meta(&source).await?;
        let expected = meta.high_water.saturating_mul(u64::from(meta.page_size));
        if meta.high_water <= FIRST_DATA_PAGE {
            return Err(Error::Page { page: 0, what: "the database has no page of data" });
        }
        if source.length() < expected {
            return Err(Error::Cut { length: source.length(), expected });
        }
        Ok(Database { source, meta })
    }

    /// Bytes of all pages in use.
    pub fn size(&self) -> u64 {
        self.meta.high_water * u64::from(self.meta.page_size)
    }

    pub fn source(&self) -> &S {
        &self.source
    }

    /// Everything, in order.
    pub fn scan(&self) -> Scan<S> {
        self.scan_where(Which::All)
    }

    /// The bucket of this name alone; ends at once if there is none.
    pub fn scan_bucket(&self, name: &'static [u8]) -> Scan<S> {
        self.scan_where(Which::Only(name))
    }

    /// Every bucket but this one, which is not read.
    pub fn scan_without(&self, name: &'static [u8]) -> Scan<S> {
        self.scan_where(Which::Without(name))
    }

    fn scan_where(&self, which: Which) -> Scan<S> {
        let pages = usize::try_from(self.meta.high_water).expect("the file has as many pages");
        Scan {
            database: self.clone(),
            reached: Reached(vec![0; pages.div_ceil(64)]),
            buckets: Tree::default(),
            records: None,
            begun: false,
            which,
        }
    }

    /// The last key of a bucket; `None` without the bucket or a record in it.
    pub async fn last_key(&self, name: &'static [u8]) -> Result<Option<Bytes>, Error> {
        let mut scan = self.scan_bucket(name);
        if scan.next().await?.is_none() {
            return Ok(None);
        }
        let Scan { reached, records, .. } = &mut scan;
        let tree = records.as_mut().expect("a bucket has begun");
        loop {
            let Some(node) = tree.path.last_mut() else { return Ok(None) };
            node.next = node.count.saturating_sub(1);
            if node.count == 0 {
                return Ok(None);
            }
            if let Step::Record(_, key, _) = tree.step(self, reached).await? {
                return Ok(Some(key));
            }
        }
    }

    async fn read(&self, page: u64, within: usize, length: usize) -> Result<Bytes, Error> {
        let at = page * u64::from(self.meta.page_size) + within as u64;
        Ok(self.source.read(at, length).await?)
    }
}

async fn find_meta<S: Source>(source: &S) -> Result<Meta, Error> {
    let length = source.length();
    let mut other_order = false;
    let mut at = 0;
    while at + ((PAGE_HEAD + META) as u64) <= length {
        match Meta::decode(&source.read(at, PAGE_HEAD + META).await?) {
            MetaRead::Valid(meta) if at == 0 => {
                // The second one counts if it is newer.
                let second = u64::from(meta.page_size);
                if second + (PAGE_HEAD + META) as u64 <= length
                    && let MetaRead::Valid(other) =
                        Meta::decode(&source.read(second, PAGE_HEAD + META).await?)
                    && other.txid > meta.txid
                    && other.page_size == meta.page_size
                {
                    return Ok(other);
                }
                return Ok(meta);
            }
            // The first meta is damaged: this is the second, where its page size puts it.
            MetaRead::Valid(meta) if u64::from(meta.page_size) == at => return Ok(meta),
            MetaRead::OtherByteOrder => other_order = true,
            MetaRead::Valid(_) | MetaRead::Invalid => {}
        }
        at = if at == 0 { u64::from(PAGE_SIZE_MIN) } else { at * 2 };
        if at > u64::from(PAGE_SIZE_MAX) {
            break;
        }
    }
    Err(if other_order { Error::ByteOrder } else { Error::NoMeta })
}

/// One bit for each page.
struct Reached(Vec<u64>);

impl Reached {
    /// Marks a run of pages; false if one was marked before or does not exist.
    fn mark(&mut self, first: u64, pages: u64) -> bool {
        (first..first + pages).all(|page| {
            let Some(word) = self.0.get_mut((page / 64) as usize) else { return false };
            let bit = 1 << (page % 64);
            let fresh = *word & bit == 0;
            *word |= bit;
            fresh
        })
    }
}

/// A walk through a database.
pub struct Scan<S> {
    database: Database<S>,
    reached: Reached,
    buckets: Tree,
    records: Option<Tree>,
    begun: bool,
    which: Which,
}

impl<S: Source + Clone> Scan<S> {
    /// The next item; `None` at the end. After an error the scan is over.
    pub async fn next(&mut self) -> Result<Option<Item>, Error> {
        let Scan { database, reached, buckets, records, begun, which } = self;
        let database = &*database;
        if !std::mem::replace(begun, true) {
            buckets.enter(database, reached, database.meta.root).await?;
        }
        loop {
            if let Some(tree) = records {
                if let Some((element, key, value)) = tree.next(database, reached).await? {
                    if element.flags & BUCKET != 0 {
                        return Err(tree.broken("a bucket inside a bucket"));
                    }
                    return Ok(Some(Item::Record { key, value }));
                }
                *records = None;
            }
            let Some((element, name, value)) = buckets.next(database, reached).await? else {
                return Ok(None);
            };
            if element.flags & BUCKET == 0 {
                return Err(buckets.broken("a record outside of every bucket"));
            }
            if !which.takes(&name) {
                continue;
            }
            if value.len() < BUCKET_HEAD {
                return Err(buckets.broken("a bucket without its head"));
            }
            let mut tree = Tree::default();
            match page::u64_at(&value, 0) {
                0 => tree.enter_inline(buckets.page(), value.slice(BUCKET_HEAD..))?,
                root => tree.enter(database, reached, root).await?,
            }
            *records = Some(tree);
            return Ok(Some(Item::Bucket(name)));
        }
    }
}

/// A path from a tree's top page to the element that comes next.
#[derive(Default)]
struct Tree {
    path: Vec<Node>,
    /// Key handed out last.
    last: Option<Bytes>,
    /// The branches on the path say that no key below lies under this one.
    least: Option<Bytes>,
}

/// A page on the path.
struct Node {
    page: u64,
    /// All bytes of an inline page; a rooted page is read in windows.
    inline: Option<Bytes>,
    /// Bytes of the page, overflow included.
    span: usize,
    is_leaf: bool,
    count: usize,
    next: usize,
    elements: Window,
    data: Window,
}

/// A piece of a page: its offset in the page, its bytes.
#[derive(Default)]
struct Window(usize, Bytes);

impl Window {
    fn get(&self, at: usize, length: usize) -> Option<Bytes> {
        let from = at.checked_sub(self.0)?;
        let end = from.checked_add(length).filter(|end| *end <= self.1.len())?;
        Some(self.1.slice(from..end))
    }
}

impl Node {
    fn broken(&self, what: &'static str) -> Error {
        Error::Page { page: self.page, what }
    }

    async fn bytes<S: Source + Clone>(
        &mut self,
        database: &Database<S>,
        element: bool,
        at: usize,
        length: usize,
    ) -> Result<Bytes, Error> {
        let end = at.checked_add(length).filter(|end| *end <= self.span);
        if end.is_none() {
            return Err(self.broken("an element lies outside of its page"));
        }
        if let Some(inline) = &self.inline {
            return Ok(inline.slice(at..at + length));
        }
        let window = if element { &mut self.elements } else { &mut self.data };
        if let Some(bytes) = window.get(at, length) {
            return Ok(bytes);
        }
        let wanted = length.max(WINDOW.min(self.span - at));
        *window = Window(at, database.read(self.page, at, wanted).await?);
        Ok(window.1.slice(..length))
    }
}

impl Tree {
    /// The page that is being read, for messages.
    fn page(&self) -> u64 {
        self.path.last().map_or(0, |node| node.page)
    }

    fn broken(&self, what: &'static str) -> Error {
        Error::Page { page: self.page(), what }
    }

    fn push(&mut self, page: u64, head: Head, span: usize, inline: Option<Bytes>) -> Result<(), Error> {
        let broken = |what| Err(Error::Page { page, what });
        let is_leaf = match head.flags {
            LEAF => true,
            BRANCH => false,
            _ => return broken("it is neither a leaf nor a branch"),
        };
        let count = usize::from(head.count);
        if PAGE_HEAD + count * ELEMENT > span {
            return broken("its elements lie outside of it");
        }
        if !is_leaf && count == 0 {
            return broken("a branch without children");
        }
        if self.path.len() == DEPTH_MAX {
            return broken("the tree is too deep");
        }
        self.path.push(Node {
            page,
            inline,
            span,
            is_leaf,
            count,
            next: 0,
            elements: Window::default(),
            data: Window::default(),
        });
        Ok(())
    }

    async fn enter<S: Source + Clone>(
        &mut self,
        database: &Database<S>,
        reached: &mut Reached,
        page: u64,
    ) -> Result<(), Error> {
        let broken = |what| Err(Error::Page { page, what });
        if page < FIRST_DATA_PAGE || page >= database.meta.high_water {
            return broken("it is pointed to and does not exist");
        }
        // The first read brings the elements' window with it.
        let page_size = database.meta.page_size as usize;
        let first = database.read(page, 0, page_size.min(WINDOW)).await?;
        let head = Head::decode(&first);
        if head.id != page {
            return broken("it says that it is another page");
        }
        let pages = u64::from(head.overflow) + 1;
        if page + pages > database.meta.high_water {
            return broken("it reaches behind the end");
        }
        if !reached.mark(page, pages) {
            return broken("it is pointed to twice");
        }
        let Ok(span) = usize::try_from(pages * page_size as u64) else {
            return broken("it is too large");
        };
        self.push(page, head, span, None)?;
        let node = self.path.last_mut().expect("it was just pushed");
        node.data = Window(0, first.clone());
        node.elements = Window(0, first);
        Ok(())
    }

    /// `page`: the one that the inline page lies in.
    fn enter_inline(&mut self, page: u64, bytes: Bytes) -> Result<(), Error> {
        if bytes.len() < PAGE_HEAD {
            return Err(Error::Page { page, what: "an inline bucket without its page" });
        }
        let head = Head::decode(&bytes);
        if head.flags != LEAF {
            return Err(Error::Page { page, what: "an inline bucket that is no leaf" });
        }
        self.push(page, head, bytes.len(), Some(bytes))
    }

    /// The next leaf element with its key and value.
    async fn next<S: Source + Clone>(
        &mut self,
        database: &Database<S>,
        reached: &mut Reached,
    ) -> Result<Option<(LeafElement, Bytes, Bytes)>, Error> {
        loop {
            match self.step(database, reached).await? {
                Step::Record(element, key, value) => return Ok(Some((element, key, value))),
                Step::Moved => {}
                Step::End => return Ok(None),
            }
        }
    }

    /// Looks at the next element of the lowest page of the path, or leaves the page.
    async fn step<S: Source + Clone>(
        &mut self,
        database: &Database<S>,
        reached: &mut Reached,
    ) -> Result<Step, Error> {
        let Some(node) = self.path.last_mut() else { return Ok(Step::End) };
        if node.next == node.count {
            self.path.pop();
            return Ok(Step::Moved);
        }
        let place = PAGE_HEAD + node.next * ELEMENT;
        node.next += 1;
        let element = node.bytes(database, true, place, ELEMENT).await?;
        if node.is_leaf {
            let element = LeafElement::decode(&element);
            let at = data_at(node, place, element.at)?;
            let key = key(node, database, at, element.key).await?;
            let length = element.value as usize;
            if length > VALUE_BYTES_MAX {
                return Err(node.broken("a value is too long"));
            }
            // The key's length was checked above.
            let value = node.bytes(database, false, at + element.key as usize, length).await?;
            if self.last.as_ref().is_some_and(|last| key <= *last) {
                return Err(self.broken("keys do not ascend"));
            }
            if self.least.as_ref().is_some_and(|least| key < *least) {
                return Err(self.broken("a key lies under its branch"));
            }
            self.last = Some(own(&key));
            return Ok(Step::Record(element, key, value));
        }
        let element = BranchElement::decode(&element);
        let at = data_at(node, place, element.at)?;
        let key = key(node, database, at, element.key).await?;
        if self.last.as_ref().is_some_and(|last| key <= *last) {
            return Err(self.broken("branch keys do not ascend"));
        }
        if self.least.as_ref().is_none_or(|least| key > *least) {
            self.least = Some(own(&key));
        }
        self.enter(database, reached, element.child).await?;
        Ok(Step::Moved)
    }
}

/// What a step on a tree came upon.
enum Step {
    Record(LeafElement, Bytes, Bytes),
    /// A page was entered or left.
    Moved,
    End,
}

/// Keeps no window alive.
fn own(key: &Bytes) -> Bytes {
    Bytes::copy_from_slice(key)
}

/// Where an element's data begins in its page: behind all elements.
fn data_at(node: &Node, element: usize, at: u32) -> Result<usize, Error> {
    let at = element + at as usize;
    if at < PAGE_HEAD + node.count * ELEMENT {
        return Err(node.broken("an element's data lies among the elements"));
    }
    Ok(at)
}

async fn key<S: Source + Clone>(
    node: &mut Node,
    database: &Database<S>,
    at: usize,
    length: u32,
) -> Result<Bytes, Error> {
    let length = length as usize;
    if length == 0 || length > KEY_BYTES_MAX {
        return Err(node.broken("a key of no or too many bytes"));
    }
    node.bytes(database, false, at, length).await
}
