//! What a key costs in memory, and how long the index takes to open from a
//! checkpoint: `cargo bench --bench index_memory`.
//!
//! Each case runs in a process of its own and reads its resident set size, so
//! that allocator slack counts. Keys have 32 bytes, values one; pages of
//! records are thrown away as they are sealed, as if they were on disk.

// A bench stands outside of the one door: it reads the system's clock.
#![allow(clippy::disallowed_methods)]

use quorate::{
    mvcc::{Missing, Mvcc, Pages},
    pagefile::PageNumber,
    proto::etcdserverpb::PutRequest,
};
use std::{fs, hint::black_box, process::Command, time::Duration};

const KEYS: u64 = 1_000_000;
const KEY_BYTES: u64 = 32;
const SLICE_BYTES: usize = 64 << 10;

/// Nothing is read here.
struct NoPages;

impl Pages for NoPages {
    fn get(&self, _page: PageNumber) -> Option<bytes::Bytes> {
        None
    }
}

fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).expect("resident pages").parse().expect("a number");
    pages * 4096
}

/// Time of this process in user mode and in the kernel: two busy neighbours do not count.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
    let (_, fields) = stat.rsplit_once(") ").expect("a name in brackets");
    let ticks = |at: usize| fields.split(' ').nth(at).expect("a field").parse::<u64>().expect("ticks");
    // Fields 14 and 15, a hundredth of a second each.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// 32 bytes in which numbers next to each other are far apart, or in order.
fn key(number: u64, scattered: bool) -> Vec<u8> {
    let lead = if scattered { number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) } else { number };
    let key = format!("{lead:016x}{:016x}", lead.wrapping_mul(0xd134_2543_de82_ef95));
    assert_eq!(key.len() as u64, KEY_BYTES);
    key.into_bytes()
}

fn put(mvcc: &mut Mvcc, number: u64, scattered: bool) {
    let request =
        PutRequest { key: key(number, scattered).into(), value: "v".into(), ..PutRequest::default() };
    let answer: Result<_, Missing> = mvcc.put(&request, &NoPages);
    answer.expect("nothing is read").expect("nothing is refused");
    drop(mvcc.take_sealed());
}

fn per(bytes: u64, count: u64) -> f64 {
    bytes as f64 / count as f64
}

fn load(scattered: bool) -> (Mvcc, u64) {
    let before = resident();
    let mut mvcc = Mvcc::default();
    (0..KEYS).for_each(|number| put(&mut mvcc, number, scattered));
    let grown = resident() - before;
    let order = if scattered { "scattered" } else { "in order" };
    println!(
        "{KEYS} keys {order}: {:.1} bytes a key beyond its own {KEY_BYTES}",
        per(grown, KEYS) - KEY_BYTES as f64
    );
    (mvcc, grown)
}

fn older(keys: u64, rounds: u64) {
    let before = resident();
    let mut mvcc = Mvcc::default();
    (0..keys).for_each(|number| put(&mut mvcc, number, true));
    let one = resident() - before;
    for _ in 0..rounds {
        (0..keys).for_each(|number| put(&mut mvcc, number, true));
    }
    let all = resident() - before;
    let slack = (100 + KEY_BYTES) * keys - one;
    println!(
        "{rounds} older revisions of each of {keys} keys: {:.1} bytes a revision; {:.1} beyond the 100 of a key",
        per(all - one, keys * rounds),
        per((all - one).saturating_sub(slack), keys * rounds)
    );
    mvcc.compact(mvcc.revision()).expect("the head can be compacted");
    let (start, mut steps, mut longest) = (cpu(), 0, Duration::ZERO);
    loop {
        let step = wall();
        let done = mvcc.compact_step(512);
        longest = longest.max(wall() - step);
        steps += 1;
        if done {
            break;
        }
    }
    println!(
        "  compacted in {steps} steps, {:?} of CPU, the longest {longest:?}; then {:.1} bytes a key",
        cpu() - start,
        per(resident() - before, keys) - KEY_BYTES as f64
    );
}

fn wall() -> Duration {
    let now = std::time::SystemTime::now();
    now.duration_since(std::time::UNIX_EPOCH).expect("after 1970")
}

fn checkpoint() {
    let (mvcc, _) = load(true);
    let (mut slices, mut from, mut longest) = (Vec::new(), Some(bytes::Bytes::new()), Duration::ZERO);
    let start = cpu();
    while let Some(key) = from {
        let begun = wall();
        let slice = mvcc.checkpoint_slice(&key, SLICE_BYTES);
        longest = longest.max(wall() - begun);
        from = slice.next.clone();
        slices.push(slice.payload);
    }
    let bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
    println!(
        "  {} slices, {:.1} bytes a key, {:?} of CPU, the longest {longest:?}",
        slices.len(),
        per(bytes, KEYS),
        cpu() - start
    );
    let path = std::env::temp_dir().join(format!("quorate-slices-{}", std::process::id()));
    let lengths: Vec<u32> = slices.iter().map(|slice| slice.len() as u32).collect();
    let mut file: Vec<u8> = Vec::new();
    for (length, slice) in lengths.iter().zip(&slices) {
        file.extend_from_slice(&length.to_le_bytes());
        file.extend_from_slice(slice);
    }
    fs::write(&path, file).expect("a temporary file");
    run(&["open", path.to_str().expect("a plain path"), &mvcc.revision().to_string()]);
    fs::remove_file(&path).expect("a temporary file");
}

fn open(path: &str, revision: &str) {
    use std::io::Read;
    let before = resident();
    let mut file = std::io::BufReader::new(fs::File::open(path).expect("a temporary file"));
    let (start, begun) = (cpu(), wall());
    let mut mvcc = Mvcc::default();
    mvcc.load_mark(revision.parse().expect("a revision"), -1).expect("a mark");
    let mut length = [0; 4];
    while file.read_exact(&mut length).is_ok() {
        let mut slice = vec![0; u32::from_le_bytes(length) as usize];
        file.read_exact(&mut slice).expect("a slice");
        mvcc.load_slice(&slice).expect("a slice");
    }
    mvcc.set_next_page(PageNumber(1 << 40));
    println!(
        "  opened in {:?} ({:?} of CPU); {:.1} bytes a key beyond its own",
        wall() - begun,
        cpu() - start,
        per(resident() - before, KEYS) - KEY_BYTES as f64
    );
    black_box(mvcc.live_keys());
}

fn run(arguments: &[&str]) {
    let own = std::env::current_exe().expect("a path of its own");
    let status = Command::new(own).args(arguments).status().expect("runs itself");
    assert!(status.success(), "{arguments:?}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => ["order", "scattered", "few", "many", "checkpoint"].iter().for_each(|case| run(&[case])),
        ["order"] => drop(load(false)),
        ["scattered"] => drop(load(true)),
        ["few"] => older(KEYS, 1),
        ["many"] => older(KEYS / 10, 30),
        ["checkpoint"] => checkpoint(),
        ["open", path, revision] => open(path, revision),
        _ => panic!("{arguments:?}"),
    }
}
