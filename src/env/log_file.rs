//! The files that log lines go to: opened once, appended to, never read.
//! Production only: no data of a member passes here.

use std::{io, path::Path};

/// Opens `path` for appending, made if it is missing. Each `write` lands at the end as a whole.
pub fn append(path: &Path) -> io::Result<std::fs::File> {
    std::fs::OpenOptions::new().append(true).create(true).open(path)
}
