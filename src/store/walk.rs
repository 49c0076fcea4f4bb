//! Every page of records up to now, in order, wherever it is: on disk, applied
//! and not written yet, or still being filled.
//!
//! **Promises** each record that stood when the walk began, in order, at least
//! once: a page that moves from memory to disk meanwhile is not passed over.

use super::cache::Held;
use super::view::View;
use super::{ReadError, kind};
use crate::env::task;
use crate::pagefile::{PageNumber, Scan};

pub struct Walk<'a> {
    view: &'a View,
    /// `None`: what is on disk was passed.
    scan: Option<Scan>,
    next: PageNumber,
}

impl<'a> Walk<'a> {
    pub fn new(view: &'a View, from: PageNumber) -> Walk<'a> {
        Walk { view, scan: Some(view.ground().reader.scan(from)), next: from }
    }

    /// The next page of records; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Held>, ReadError> {
        let ground = self.view.ground();
        loop {
            if let Some(scan) = &mut self.scan {
                match scan.next().await {
                    Ok(Some(page)) => {
                        let behind = page.number.behind(page.span);
                        if behind <= self.next {
                            continue;
                        }
                        self.next = behind;
                        if page.kind == kind::RECORDS {
                            return Ok(Some(Held {
                                number: page.number,
                                span: page.span,
                                payload: page.payload,
                            }));
                        }
                    }
                    Ok(None) => self.scan = None,
                    Err(error @ crate::pagefile::Error::Rot { .. }) => {
                        // Read again, and told if it is damaged indeed.
                        self.view.shared().read_page(&ground.reader, self.next).await?;
                        return Err(error.into());
                    }
                    Err(error) => return Err(error.into()),
                }
                continue;
            }
            // Memory first, disk afterwards: what leaves memory in between is on disk by then.
            let held = self.view.look(|state| {
                let pinned = ground.cache.first_pinned(self.next);
                pinned.or_else(|| {
                    let (number, payload) = state.mvcc().open_page();
                    (number >= self.next && !payload.is_empty()).then_some(Held { number, span: 0, payload })
                })
            })?;
            let on_disk = ground.reader.pages(self.next, 1).first().map(|page| page.number);
            match (held, on_disk) {
                (Some(held), on_disk) if on_disk.is_none_or(|number| number >= held.number) => {
                    self.next = PageNumber(held.number.0 + 1);
                    return Ok(Some(held));
                }
                (None, None) => return Ok(None),
                _ => {
                    crate::reached!("page went to disk during a walk");
                    self.scan = Some(ground.reader.scan(self.next));
                    task::yield_now().await;
                }
            }
        }
    }
}
