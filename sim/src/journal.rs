//! What a person reads of a run: one line for each thing that happened, kept only when asked for.
//!
//! Apart from the trace, which is for comparing: nothing here is hashed.

use std::cell::RefCell;

thread_local! {
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Starts afresh on this thread.
pub fn start(keep: bool) {
    LINES.set(keep.then(Vec::new));
}

/// The lines so far.
pub fn take() -> Vec<String> {
    LINES.take().unwrap_or_default()
}

/// Adds a line with the virtual time; not evaluated when nobody asked.
pub fn note(line: impl FnOnce() -> String) {
    LINES.with_borrow_mut(|lines| {
        if let Some(lines) = lines {
            let at = madsim::time::TimeHandle::try_current().map_or(0.0, |time| time.elapsed().as_secs_f64());
            lines.push(format!("{at:11.6} {}", line()));
        }
    });
}
