//! The house rules that no compiler knows, read off the sources.
//!
//! Fails on an import that does not point down (floors in `src/lib.rs`), on a
//! call that only `src/env/` may make, and on a `select!` that does not begin
//! with `biased;`. Prints the longest files and functions, as a mirror and not
//! as a limit. It reads text, not meaning: paths are followed through `use`,
//! not through re-exports. Code under `#[cfg(test)]` may import and call what
//! it likes; its selects must be biased all the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Beside what `clippy.toml` bans: whole crates and modules.
const BANNED: &[(&str, &str)] = &[
    ("std::fs", "use env::Disk"),
    ("tokio::fs", "use env::Disk"),
    ("tokio::net", "use env::net"),
    ("std::net::TcpStream", "use env::net"),
    ("std::net::TcpListener", "use env::net"),
    ("std::net::UdpSocket", "use env::net"),
    ("std::thread::Builder", "use env::task"),
    ("rand", "use env::Rng"),
    ("rand_chacha", "use env::Rng"),
    ("rand_core::OsRng", "use env::Rng"),
    ("getrandom", "use env::Rng"),
    ("futures::select", "use tokio::select with biased"),
    ("futures::select_biased", "use tokio::select with biased"),
];

/// A source file, with comments and the insides of literals blanked; lines stay where they are.
struct Source {
    path: PathBuf,
    bare: String,
}

type Floors = BTreeMap<String, u32>;

#[test]
fn the_house_is_in_order() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| fs::read_to_string(root.join(path)).expect("a file of the house");
    let floors = floors(&read("src/lib.rs"));
    let banned = banned(&read("clippy.toml"));
    let sources = sources(root, "src");
    let simulation = sources_if_there(root, "sim/src");

    let mut wrong = Vec::new();
    for room in rooms(&sources) {
        if !floors.contains_key(&room) {
            wrong.push(format!("src/{room}: not in the table of src/lib.rs"));
        }
    }
    let test_files = test_files(&sources);
    for source in &sources {
        wrong.extend(selects(source));
        if !test_files.contains(&source.path) {
            wrong.extend(imports(source, &floors));
            wrong.extend(calls(source, &banned));
        }
    }
    for source in &simulation {
        wrong.extend(selects(source));
    }
    mirror(&sources, &simulation);
    assert!(wrong.is_empty(), "the house is not in order:\n{}", wrong.join("\n"));
}

// ---- reading ----

fn sources_if_there(root: &Path, folder: &str) -> Vec<Source> {
    if root.join(folder).is_dir() { sources(root, folder) } else { Vec::new() }
}

/// Every `.rs` file below, paths relative to the root, sorted.
fn sources(root: &Path, folder: &str) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the house") {
            let path = entry.expect("an entry of the folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("sources are text");
                let path = path.strip_prefix(root).expect("below the root").to_owned();
                found.push(Source { path, bare: bare(&text) });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// Blanks comments and the insides of string and character literals.
fn bare(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    let blank = |out: &mut Vec<u8>, from: usize, to: usize| {
        for byte in &mut out[from..to] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    };
    while at < bytes.len() {
        let rest = &bytes[at..];
        let is_word = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        if rest.starts_with(b"//") {
            let end = rest.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| at + end);
            blank(&mut out, at, end);
            at = end;
        } else if rest.starts_with(b"/*") {
            let mut depth = 0;
            let mut end = at;
            while end < bytes.len() {
                if bytes[end..].starts_with(b"/*") {
                    depth += 1;
                    end += 2;
                } else if bytes[end..].starts_with(b"*/") {
                    depth -= 1;
                    end += 2;
                    if depth == 0 {
                        break;
                    }
                } else {
                    end += 1;
                }
            }
            let end = end.min(bytes.len());
            blank(&mut out, at, end);
            at = end;
        } else if !is_word && (rest.starts_with(b"r\"") || rest.starts_with(b"r#") || rest.starts_with(b"br"))
        {
            let word = if rest[0] == b'b' { 2 } else { 1 };
            let hashes = rest[word..].iter().take_while(|byte| **byte == b'#').count();
            if rest.get(word + hashes) != Some(&b'"') {
                at += 1;
                continue;
            }
            let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
            let from = at + word + hashes + 1;
            let end = find(bytes, &close, from).unwrap_or(bytes.len());
            blank(&mut out, from, end);
            at = end + close.len();
        } else if rest[0] == b'"' {
            let mut end = at + 1;
            while end < bytes.len() && bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            let end = end.min(bytes.len());
            blank(&mut out, at + 1, end);
            at = end + 1;
        } else if rest[0] == b'\'' {
            // A literal, or a lifetime: that has no closing quote nearby.
            let end = match rest {
                [_, b'\\', ..] => find(bytes, b"'", at + 3),
                _ => {
                    let width = text[at + 1..].chars().next().map_or(1, char::len_utf8);
                    Some(at + 1 + width).filter(|end| bytes.get(*end) == Some(&b'\''))
                }
            };
            if let Some(end) = end {
                blank(&mut out, at + 1, end);
            }
            at = end.map_or(at + 1, |end| end + 1);
        } else {
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn find(bytes: &[u8], what: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    rest.windows(what.len()).position(|window| window == what).map(|at| from + at)
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Where the bracket that opens at `open` closes.
fn closing(bare: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in bare.bytes().enumerate().skip(open) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    bare.len()
}

/// Items under `#[cfg(test)]` (and the like), as spans of text.
fn test_items(bare: &str) -> Vec<(usize, usize)> {
    let mut items = Vec::new();
    for attribute in ["#[cfg(test)]", "#[cfg(all(test"] {
        for (start, _) in bare.match_indices(attribute) {
            let mut at = closing(bare, start + 1) + 1;
            while bare[at..].trim_start().starts_with("#[") {
                let open = at + bare[at..].find('[').expect("just seen");
                at = closing(bare, open) + 1;
            }
            let end = match bare[at..].find(['{', ';']) {
                Some(end) if bare.as_bytes()[at + end] == b'{' => closing(bare, at + end) + 1,
                Some(end) => at + end + 1,
                None => bare.len(),
            };
            items.push((start, end.min(bare.len())));
        }
    }
    items
}

fn without_tests(bare: &str) -> String {
    let mut bytes = bare.as_bytes().to_vec();
    for (start, end) in test_items(bare) {
        for byte in &mut bytes[start..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Files that are modules under `#[cfg(test)]`.
fn test_files(sources: &[Source]) -> BTreeSet<PathBuf> {
    let mut roots = Vec::new();
    for source in sources {
        for (start, end) in test_items(&source.bare) {
            let item = &source.bare[start..end];
            if let Some(name) = item.strip_suffix(';').and_then(|item| item.rsplit_once("mod ")) {
                roots.push(module_folder(&source.path).join(name.1.trim()));
            }
        }
    }
    let below =
        |path: &Path| roots.iter().any(|root| path.starts_with(root) || path == root.with_extension("rs"));
    sources.iter().map(|source| source.path.clone()).filter(|path| below(path)).collect()
}

/// The folder in which a file's submodules lie.
fn module_folder(path: &Path) -> PathBuf {
    let is_root = ["mod.rs", "lib.rs", "main.rs"].iter().any(|name| path.ends_with(name));
    if is_root { path.parent().expect("in a folder").to_owned() } else { path.with_extension("") }
}

/// Every path in the text with its line: those of `use` items spread out, and those in code with
/// their first name followed through the file's `use` items.
fn paths(bare: &str) -> Vec<(usize, Vec<String>)> {
    let tokens = tokens(bare);
    let mut paths = Vec::new();
    let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut at = 0;
    let mut inline = Vec::new();
    while at < tokens.len() {
        let (offset, token) = tokens[at];
        // `use<'a>` is a bound, not an item.
        if token == "use" && tokens.get(at + 1).is_some_and(|next| next.1 != "<") {
            let mut found = Vec::new();
            at = use_tree(&tokens, at + 1, &[], &mut found);
            for (path, name) in found {
                names.insert(name, path.clone());
                paths.push((line_of(bare, offset), path));
            }
        } else if is_name(token) && (at == 0 || tokens[at - 1].1 != "::") {
            let mut path = vec![token.to_owned()];
            while at + 2 < tokens.len() && tokens[at + 1].1 == "::" && is_name(tokens[at + 2].1) {
                path.push(tokens[at + 2].1.to_owned());
                at += 2;
            }
            inline.push((offset, path));
            at += 1;
        } else {
            at += 1;
        }
    }
    for (offset, path) in inline {
        let path = match names.get(&path[0]) {
            Some(whole) => [&whole[..], &path[1..]].concat(),
            None if path.len() > 1 => path,
            None => continue,
        };
        paths.push((line_of(bare, offset), path));
    }
    paths
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Words, `::` and single marks.
fn tokens(bare: &str) -> Vec<(usize, &str)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = bare[at..].chars().next() {
        let length = if first.is_alphanumeric() || first == '_' {
            bare[at..].find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(bare.len() - at)
        } else if bare[at..].starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        if !first.is_whitespace() {
            tokens.push((at, &bare[at..at + length]));
        }
        at += length;
    }
    tokens
}

/// Spreads one tree of a `use` item into (path, the name it has here); returns where it ends.
fn use_tree(
    tokens: &[(usize, &str)],
    mut at: usize,
    prefix: &[String],
    found: &mut Vec<(Vec<String>, String)>,
) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at).map(|token| token.1) {
            Some("::") => at += 1,
            Some("{") => {
                at += 1;
                while tokens.get(at).is_some_and(|token| token.1 != "}") {
                    at = use_tree(tokens, at, &path, found);
                    if tokens.get(at).is_some_and(|token| token.1 == ",") {
                        at += 1;
                    }
                }
                return at + 1;
            }
            Some("*") => {
                found.push((path, "*".to_owned()));
                return at + 1;
            }
            Some("self") if !path.is_empty() => at += 1,
            Some("as") => {
                let name = tokens.get(at + 1).map_or("_", |token| token.1).to_owned();
                found.push((path, name));
                return at + 2;
            }
            Some(name) if is_name(name) => {
                path.push(name.to_owned());
                at += 1;
            }
            _ => {
                let name = path.last().cloned().unwrap_or_default();
                found.push((path, name));
                return at;
            }
        }
    }
}

// ---- rules ----

/// The table in the head of `src/lib.rs`: room, floor.
fn floors(map: &str) -> Floors {
    let mut floors = Floors::new();
    for row in map.lines().filter_map(|line| line.strip_prefix("//! |")) {
        let cells: Vec<&str> = row.split('|').collect();
        let Some(floor) = cells.first().and_then(|cell| cell.trim().parse().ok()) else { continue };
        for name in cells[1].split('`').skip(1).step_by(2) {
            floors.insert(name.trim_end_matches('/').trim_start_matches("quorate_").to_owned(), floor);
        }
    }
    assert!(floors.len() > 3, "src/lib.rs has its table of floors");
    floors
}

/// `clippy.toml`'s list and ours: path, reason.
fn banned(clippy: &str) -> Vec<(Vec<String>, String)> {
    let quoted = |line: &str, key: &str| {
        let rest = &line[line.find(key)? + key.len()..];
        rest.split('"').nth(1).map(str::to_owned)
    };
    let split = |path: &str| path.split("::").map(str::to_owned).collect::<Vec<_>>();
    let mut banned: Vec<_> = clippy
        .lines()
        .filter_map(|line| Some((split(&quoted(line, "path =")?), quoted(line, "reason =")?)))
        .collect();
    assert!(!banned.is_empty(), "clippy.toml bans calls");
    banned.extend(BANNED.iter().map(|(path, reason)| (split(path), (*reason).to_owned())));
    banned
}

/// The room of a file: the first folder or file below `src/`.
fn room(path: &Path) -> Option<String> {
    let below = path.strip_prefix("src").ok()?;
    let first = below.components().next()?.as_os_str().to_str()?;
    let name = first.trim_end_matches(".rs");
    if ["lib", "main"].contains(&name) { None } else { Some(name.to_owned()) }
}

fn rooms(sources: &[Source]) -> BTreeSet<String> {
    sources.iter().filter_map(|source| room(&source.path)).collect()
}

/// Imports that do not point down.
fn imports(source: &Source, floors: &Floors) -> Vec<String> {
    let Some(here) = room(&source.path) else { return Vec::new() };
    let Some(floor) = floors.get(&here) else { return Vec::new() };
    let module = module_folder(&source.path);
    let module: Vec<String> =
        module.iter().skip(1).filter_map(|part| part.to_str().map(str::to_owned)).collect();
    let mut wrong = BTreeSet::new();
    for (line, path) in paths(&without_tests(&source.bare)) {
        let Some(there) = target(&path, &module) else { continue };
        let Some(other) = floors.get(&there).filter(|_| there != here) else { continue };
        if other >= floor {
            let way = if other > floor { "up" } else { "sideways" };
            wrong.insert(format!(
                "{}:{line}: imports {way}: {here} (floor {floor}) from {there} (floor {other})",
                source.path.display()
            ));
        }
    }
    wrong.into_iter().collect()
}

/// The room that a path leads to, if it may be one.
fn target(path: &[String], module: &[String]) -> Option<String> {
    match path[0].as_str() {
        "crate" | "quorate" => path.get(1).cloned(),
        "quorate_proto" => Some("proto".to_owned()),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            let base = module.get(..module.len().saturating_sub(ups)).unwrap_or(&[]);
            base.first().or_else(|| path.get(ups)).cloned()
        }
        _ => None,
    }
}

/// I1: what only `src/env/` may touch.
fn calls(source: &Source, banned: &[(Vec<String>, String)]) -> Vec<String> {
    if room(&source.path).is_some_and(|room| room == "env") {
        return Vec::new();
    }
    let mut wrong = BTreeSet::new();
    for (line, path) in paths(&without_tests(&source.bare)) {
        for (call, reason) in banned {
            if path.starts_with(call) {
                let path = call.join("::");
                wrong.insert(format!("{}:{line}: {path}: {reason}", source.path.display()));
            }
        }
    }
    wrong.into_iter().collect()
}

/// Every `select!` is biased: else the order would depend on what ran before in the process.
fn selects(source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, _) in source.bare.match_indices("select!") {
        let is_word = source.bare[..at].ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let inside = source.bare[at + "select!".len()..].trim_start();
        let first = inside.trim_start_matches(['{', '(', '[']).trim_start();
        if !is_word && inside.len() != first.len() && !first.starts_with("biased;") {
            let line = line_of(&source.bare, at);
            wrong.push(format!("{}:{line}: select! without biased; first", source.path.display()));
        }
    }
    wrong
}

// ---- mirror ----

/// (lines, name) of every function with a body.
fn functions(bare: &str) -> Vec<(usize, String)> {
    let tokens = tokens(bare);
    let mut found = Vec::new();
    for (nth, (_, token)) in tokens.iter().enumerate() {
        let Some((start, name)) = tokens.get(nth + 1).filter(|next| *token == "fn" && is_name(next.1)) else {
            continue;
        };
        let mut at = *start;
        while let Some(next) = bare[at..].find(['{', ';', '(', '[']) {
            at += next;
            match bare.as_bytes()[at] {
                b'{' => {
                    let lines = bare[*start..closing(bare, at)].matches('\n').count() + 1;
                    found.push((lines, (*name).to_owned()));
                    break;
                }
                b';' => break,
                _ => at = closing(bare, at),
            }
        }
    }
    found
}

fn mirror(sources: &[Source], simulation: &[Source]) {
    let mut files = Vec::new();
    let mut functions_all = Vec::new();
    for source in sources.iter().chain(simulation) {
        let path = source.path.display().to_string();
        files.push((source.bare.lines().count(), path.clone()));
        let named =
            functions(&source.bare).into_iter().map(|(lines, name)| (lines, format!("{path} {name}")));
        functions_all.extend(named);
    }
    for (title, mut all) in [("files", files), ("functions", functions_all)] {
        all.sort_by(|one, other| other.cmp(one));
        println!("longest {title}:");
        for (lines, name) in all.iter().take(10) {
            println!("{lines:6} {name}");
        }
    }
}

// ---- the checker, checked ----

const MAP: &str = "\
//! | floor | room |
//! |---|---|
//! | 8 | `bin/` |
//! | 3 | [`replica`], [`client`] |
//! | 2 | [`log`] |
//! | 0 | [`env`], `quorate_proto` |
";
const CLIPPY: &str = r#"
disallowed-methods = [
  { path = "std::time::Instant::now", reason = "use env::Clock" },
  { path = "std::thread::spawn", reason = "use env::task" },
]"#;

/// What is wrong with a file, in a few words each.
fn check(path: &str, text: &str, expected: &[&str]) {
    let source = Source { path: PathBuf::from(path), bare: bare(text) };
    let mut wrong = imports(&source, &floors(MAP));
    wrong.extend(calls(&source, &banned(CLIPPY)));
    wrong.extend(selects(&source));
    assert_eq!(wrong.len(), expected.len(), "{path}:\n{text}\n{wrong:#?}");
    for (wrong, expected) in wrong.iter().zip(expected) {
        assert!(wrong.contains(expected), "{wrong} without {expected}");
    }
}

#[test]
fn imports_that_do_not_point_down_are_found() {
    check("src/replica/peer.rs", "use crate::log::Log; use crate::{env::Env, proto};", &[]);
    check("src/log/mod.rs", "use crate::replica::Raft;", &["up: log (floor 2) from replica"]);
    check("src/log/mod.rs", "use crate::{env, replica::{self, Raft}};", &["imports up"]);
    check("src/log/mod.rs", "fn f() { crate::replica::start(); }", &["imports up"]);
    check("src/log/a/b.rs", "use super::super::super::client;", &["imports up"]);
    check("src/log/a/b.rs", "use super::super::client;", &[]);
    check("src/log/a.rs", "use super::client;", &[]);
    check("src/client/mod.rs", "use crate::replica as other;", &["sideways"]);
    check("src/bin/quorate.rs", "use quorate::replica;", &[]);
    check("src/env/mod.rs", "use quorate_proto::raftpb;", &["sideways"]);
    check("src/log/mod.rs", "// use crate::replica;\n/* crate::replica /* */ */ \"crate::replica\"", &[]);
    check("src/log/mod.rs", "#[cfg(test)]\nmod tests { use crate::replica::Raft; }\nuse crate::env;", &[]);
    check("src/log/mod.rs", "#[cfg(test)]\nmod tests {}\nuse crate::client;", &["log/mod.rs:3"]);
}

#[test]
fn calls_past_the_door_are_found() {
    check("src/log/a.rs", "use std::time::Instant; fn f() { Instant::now(); }", &["Instant::now"]);
    check("src/log/a.rs", "use std::time::{self, Duration}; fn f() { time::Instant::now(); }", &["now"]);
    check("src/log/a.rs", "fn f() { std::thread::spawn(|| ()); }", &["use env::task"]);
    check("src/log/a.rs", "use std::{fmt, fs};", &["std::fs"]);
    check("src/log/a.rs", "use std::fs::File as Handle;", &["std::fs"]);
    check("src/log/a.rs", "fn f() { rand::random::<u8>(); }", &["use env::Rng"]);
    check("src/log/a.rs", "fn f(rand: u8) { operand::x(rand); self::rand(); }", &[]);
    check("src/env/os.rs", "use std::fs; fn f() { std::thread::spawn(|| ()); }", &[]);
    check("src/log/a.rs", "const A: &str = r#\"std::fs \"# ; const B: char = '\"'; // std::fs", &[]);
    check("src/log/a.rs", "fn f<'a>(x: &'a str) {}\nuse std::fs;", &["a.rs:2: std::fs"]);
}

#[test]
fn unbiased_selects_are_found() {
    check("src/log/a.rs", "tokio::select! { biased; x = y => {} }", &[]);
    check("src/log/a.rs", "fn f() {\n tokio::select! {\n x = y => {} } }", &["a.rs:2: select!"]);
    check("src/log/a.rs", "select! { // biased;\n x = y => {} }", &["select!"]);
    check("src/log/a.rs", "#[cfg(test)] mod t { fn f() { select!(x = y => {}) } }", &["select!"]);
    check("src/log/a.rs", "use futures::select; ", &["futures::select"]);
}

#[test]
fn test_modules_in_files_of_their_own_are_known() {
    let source = |path: &str, text: &str| Source { path: PathBuf::from(path), bare: bare(text) };
    let sources = [
        source("src/log/mod.rs", "#[cfg(test)]\nmod tests;\nmod file;"),
        source("src/log/file.rs", "#[cfg(test)] #[allow(x)] mod images;"),
        source("src/log/tests.rs", ""),
        source("src/log/file/images.rs", ""),
    ];
    let found: Vec<_> = test_files(&sources).into_iter().collect();
    assert_eq!(found, [PathBuf::from("src/log/file/images.rs"), PathBuf::from("src/log/tests.rs")]);
}

#[test]
fn functions_are_measured() {
    let text = "fn a(x: [u8; 3]) -> u8 {\n 1\n}\ntrait T { fn b(); }\nfn c() where X: Y { if x { } }";
    assert_eq!(functions(&bare(text)), [(3, "a".to_owned()), (1, "c".to_owned())]);
}
