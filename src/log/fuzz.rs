//! The decoder of log pages, for `tests/fuzz`: whatever it gets, it must not panic.

use super::record::{self, Replay};
use super::tail::Tail;
use crate::pagefile::{CommitNumber, Label, Page, PageNumber};
use bytes::Bytes;

/// A log of the pages that `bytes` are cut into: before each page stands its
/// length (one byte).
pub fn replay(bytes: &[u8]) {
    let mut replay = Replay::new(Tail::new((0, 0), 0, 1 << 20));
    let (mut rest, mut number) = (bytes, 0);
    while let Some((length, pages)) = rest.split_first() {
        let (payload, behind) = pages.split_at(usize::from(*length).min(pages.len()));
        (rest, number) = (behind, number + 1);
        let page = Page {
            number: PageNumber(number),
            span: 0,
            kind: record::KIND,
            commit: CommitNumber(number),
            label: Label::default(),
            payload: Bytes::copy_from_slice(payload),
        };
        // What it refuses is an answer, too.
        drop(record::decode_entries(&page));
        replay.take(&page);
    }
    drop(replay.finish());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_and_what_is_near_it() {
        let inputs: [&[u8]; 3] = [
            include_bytes!("../../tests/fuzz/corpus/log_page/begun-anew"),
            include_bytes!("../../tests/fuzz/corpus/log_page/front-dropped"),
            include_bytes!("../../tests/fuzz/corpus/log_page/suffix-replaced"),
        ];
        for input in inputs {
            replay(input);
            for (at, mask) in (0..input.len()).flat_map(|at| (1..=255).map(move |mask| (at, mask))) {
                let mut bad = input.to_vec();
                bad[at] ^= mask;
                replay(&bad);
                replay(&bad[..at]);
            }
        }
    }
}
