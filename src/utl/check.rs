//! check: every page of a stopped member is read, verified and decoded.

use super::{Session, args::DataDir, failed, source};
use crate::backup::{Records, View};
use crate::layout::{
    Failure,
    printer::{self, Format},
};
use crate::log;
use crate::pagefile::{self, PageFile, PageNumber};
use crate::replica::StoppedMember;
use serde_json::json;
use std::path::Path;

/// Page files of a member, and whether one may be missing.
const FILES: [(&str, bool); 3] = [("store", false), ("log", true), ("index", true)];
/// Facts of pages that are asked for at once.
const PAGES_MAX: usize = 1024;

#[derive(Default)]
struct Report {
    pages: u64,
    problems: Vec<String>,
}

pub(super) async fn run(session: &Session, args: DataDir) -> Result<(), Failure> {
    let dir = args.data_dir.join("member");
    let mut report = Report::default();
    {
        let _member = StoppedMember::open(&session.env, &dir).await.map_err(failed)?;
        for (name, optional) in FILES {
            pages(session, &dir.join(name), name, optional, &mut report).await;
        }
        log_pages(session, &dir.join("log"), &mut report).await;
    }
    // Whole pages may still contradict each other.
    if report.problems.is_empty() {
        match source::open_stopped(&session.env, &args.data_dir).await {
            Ok(view) => {
                let mut records = view.records();
                loop {
                    match records.next().await {
                        Ok(Some(_)) => {}
                        Ok(None) => break,
                        Err(error) => {
                            report.problems.push(format!("store: {error}"));
                            break;
                        }
                    }
                }
            }
            Err(failure) => report.problems.push(failure.text.unwrap_or_default()),
        }
    }
    let Report { pages, problems } = report;
    match session.format {
        Format::Simple => {
            problems.iter().for_each(|problem| printer::line(problem));
            printer::line(&format!("{pages} pages checked, {} problems", problems.len()));
        }
        Format::Json => printer::json(&json!({"pages": pages, "problems": problems})),
        other => return Err(other.unsupported()),
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::said(1)) }
}

/// Verifies one page file.
async fn pages(session: &Session, dir: &Path, name: &str, optional: bool, report: &mut Report) {
    let (reader, opened) = match PageFile::open_read_only(session.env.disk.clone(), dir.to_owned()).await {
        Ok(opened) => opened,
        Err(pagefile::Error::Io { source, .. })
            if optional && source.kind() == std::io::ErrorKind::NotFound =>
        {
            return;
        }
        Err(error) => {
            report.problems.push(format!("{name}: {error}"));
            return;
        }
    };
    if opened.torn_bytes > 0 {
        super::say(&format!("{name}: the last {} bytes are torn and do not count", opened.torn_bytes));
    }
    let mut from = PageNumber(0);
    loop {
        let facts = reader.pages(from, PAGES_MAX);
        let Some(last) = facts.last() else { return };
        from = last.number.behind(last.span);
        for page in &facts {
            report.pages += 1;
            if let Err(error) = reader.verify(page.number).await {
                report.problems.push(format!("{name}: page {}: {error}", page.number.0));
            }
        }
    }
}

/// Decodes the log's pages.
async fn log_pages(session: &Session, dir: &Path, report: &mut Report) {
    let Ok((_, mut pages)) = log::Pages::open(&session.env, dir.to_owned()).await else {
        // Missing, or told already.
        return;
    };
    loop {
        match pages.next().await {
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => {
                report.problems.push(format!("log: {error}"));
                return;
            }
        }
    }
}
