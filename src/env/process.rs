//! What the operating system says of this process, for metrics. Production
//! only: a simulated member has no process of its own.

/// One look at the process; units in the names.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Process {
    pub cpu_seconds: f64,
    pub open_fds: u64,
    /// Soft limit on open files.
    pub max_fds: u64,
    pub resident_bytes: u64,
    pub virtual_bytes: u64,
    /// Since the Unix epoch.
    pub start_seconds: f64,
}

/// Reads `/proc/self`; `None` where there is none.
#[cfg(not(madsim))]
pub fn read() -> Option<Process> {
    let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
    let page_bytes = rustix::param::page_size() as u64;
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may hold anything; fields are counted after it, the state being the third.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let boot_seconds = std::fs::read_to_string("/proc/stat")
        .ok()?
        .lines()
        .find_map(|line| line.strip_prefix("btime ")?.parse::<u64>().ok())?;
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let max_fds = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files")?.split_ascii_whitespace().next()?.parse().ok());
    Some(Process {
        cpu_seconds: (field(14)? + field(15)?) as f64 / ticks_per_second,
        open_fds: std::fs::read_dir("/proc/self/fd").ok()?.count() as u64,
        max_fds: max_fds.unwrap_or(u64::MAX),
        resident_bytes: field(24)? * page_bytes,
        virtual_bytes: field(23)?,
        start_seconds: boot_seconds as f64 + field(22)? as f64 / ticks_per_second,
    })
}

/// A simulated member has no process.
#[cfg(madsim)]
pub fn read() -> Option<Process> {
    None
}

#[cfg(all(test, not(madsim)))]
mod tests {
    #[test]
    fn this_process_has_memory_and_files() {
        let process = super::read().expect("tests run on Linux");
        assert!(process.resident_bytes > 1 << 20 && process.virtual_bytes >= process.resident_bytes);
        assert!(process.open_fds >= 3 && process.max_fds >= process.open_fds);
        assert!(process.start_seconds > 1.5e9);
    }
}
