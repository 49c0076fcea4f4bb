//! Log lines laid out as etcd's: JSON objects with the keys `level ts [logger]
//! caller msg FIELDS...` in this order, or the console form.
//!
//! Sits on `tracing`: the level is the event's, but the targets `fatal` and
//! `panic` raise it; the target `raft` is etcd's logger of that name. A field
//! whose debug text is a JSON array stays one (see [`list`]).
//! One event is one write to each output. **Never** decides what is logged.

use crate::env::{Clock, log_file};
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer};
use tracing_subscriber::{filter::LevelFilter, registry::LookupSpan};

/// Target of an event after which the process ends with a failure.
pub const FATAL: &str = "fatal";
/// Target of the line that a panic leaves.
pub const PANIC: &str = "panic";

/// etcd's levels, least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
    Panic,
    Fatal,
}

impl Level {
    fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
            Level::Panic => "panic",
            Level::Fatal => "fatal",
        }
    }
}

/// `--log-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    Console,
}

/// One target of `--log-outputs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Stderr,
    Stdout,
    File(String),
}

/// What to log, how and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub level: Level,
    pub format: Format,
    pub outputs: Vec<Output>,
}

impl Default for Options {
    fn default() -> Self {
        Options { level: Level::Info, format: Format::Json, outputs: vec![Output::Stderr] }
    }
}

/// Why the log flags cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    #[error("unrecognized level: {0:?}")]
    Level(String),
    #[error("unknown log format: {0}, supported values json, console")]
    Format(String),
    #[error("multi logoutput for \"default\" is not supported yet")]
    ManyDefaults,
    #[error("log output \"systemd/journal\" is not served yet")]
    Journal,
    #[error("open sink {path:?}: open {path}: {what}")]
    Open { path: String, what: String },
}

impl Options {
    /// Reads the values of the three flags.
    pub fn parse(level: &str, format: &str, outputs: &str) -> Result<Options, OptionsError> {
        let level = match level.to_ascii_lowercase().as_str() {
            "debug" => Level::Debug,
            "" | "info" => Level::Info,
            "warn" => Level::Warn,
            "error" => Level::Error,
            "dpanic" | "panic" => Level::Panic,
            "fatal" => Level::Fatal,
            _ => return Err(OptionsError::Level(level.to_owned())),
        };
        let format = match format {
            "" | "json" => Format::Json,
            "console" => Format::Console,
            _ => return Err(OptionsError::Format(format.to_owned())),
        };
        let names: Vec<&str> = outputs.split(',').collect();
        if names.len() > 1 && names.contains(&"default") {
            return Err(OptionsError::ManyDefaults);
        }
        let outputs = names.into_iter().map(|name| match name {
            "default" | "stderr" => Ok(Output::Stderr),
            "stdout" => Ok(Output::Stdout),
            "systemd/journal" => Err(OptionsError::Journal),
            path => Ok(Output::File(path.to_owned())),
        });
        Ok(Options { level, format, outputs: outputs.collect::<Result<_, _>>()? })
    }

    /// Opens the outputs and makes this the process's log. Only the first call counts.
    pub fn install(&self, clock: Arc<dyn Clock>) -> Result<(), OptionsError> {
        let mut sinks: Vec<Box<dyn Write + Send>> = Vec::new();
        for output in &self.outputs {
            sinks.push(match output {
                Output::Stderr => Box::new(io::stderr()),
                Output::Stdout => Box::new(io::stdout()),
                Output::File(path) => Box::new(
                    log_file::append(path.as_ref())
                        .map_err(|error| OptionsError::Open { path: path.clone(), what: plain(&error) })?,
                ),
            });
        }
        let sinks = Sinks(Arc::new(Mutex::new(sinks)));
        let layout = Layout { format: self.format, level: self.level, clock };
        let subscriber = subscriber(layout.clone(), sinks.clone());
        if tracing::subscriber::set_global_default(subscriber).is_ok() {
            drop(INSTALLED.set((layout, sinks)));
        }
        Ok(())
    }
}

static INSTALLED: OnceLock<(Layout, Sinks)> = OnceLock::new();

/// Writes a panic's line past `tracing`, whose state a panic may have caught
/// in any condition. Waits for no lock.
pub fn write_panic(message: &str, caller: &str) {
    let stderr = || Sinks(Arc::new(Mutex::new(vec![Box::new(io::stderr()) as Box<dyn Write + Send>])));
    let mut line = String::new();
    let (mut sinks, wall, format) = match INSTALLED.get() {
        Some((layout, sinks)) => (sinks.clone(), layout.clock.wall(), layout.format),
        None => (stderr(), Duration::ZERO, Format::Json),
    };
    let head = Head { level: Level::Panic, wall, logger: None, caller, message };
    if format_line(&mut line, format, &head, &[]).is_ok() && !sinks.try_write(&line) {
        sinks = stderr();
        sinks.try_write(&line);
    }
}

/// The text of an operating system's error without Rust's "(os error N)", in lower case as Go has it.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

/// A field value that stays a JSON array in the log: `"urls" = ?list(&urls)`.
pub fn list<T: ToString>(values: impl IntoIterator<Item = T>) -> impl fmt::Debug {
    struct List(String);
    impl fmt::Debug for List {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str(&self.0)
        }
    }
    let values: Vec<serde_json::Value> =
        values.into_iter().map(|value| serde_json::Value::String(value.to_string())).collect();
    List(serde_json::Value::Array(values).to_string())
}

fn subscriber(layout: Layout, sinks: Sinks) -> impl Subscriber + Send + Sync {
    let most = match layout.level {
        Level::Debug => LevelFilter::DEBUG,
        Level::Info => LevelFilter::INFO,
        Level::Warn => LevelFilter::WARN,
        Level::Error | Level::Panic | Level::Fatal => LevelFilter::ERROR,
    };
    tracing_subscriber::fmt().with_max_level(most).event_format(layout).with_writer(sinks).finish()
}

/// All outputs; a line goes to each of them.
#[derive(Clone)]
struct Sinks(Arc<Mutex<Vec<Box<dyn Write + Send>>>>);

impl Sinks {
    fn try_write(&self, line: &str) -> bool {
        let Ok(mut sinks) = self.0.try_lock() else { return false };
        for sink in sinks.iter_mut() {
            // There is nowhere left to complain to.
            let _ = sink.write_all(line.as_bytes()).and_then(|()| sink.flush());
        }
        true
    }
}

impl Write for Sinks {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A poisoned lock belongs to a process that is about to end: its last lines matter.
        let mut sinks = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for sink in sinks.iter_mut() {
            // A full disk under one output must not silence the others, nor stop the member.
            let _ = sink.write_all(line).and_then(|()| sink.flush());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Sinks {
    type Writer = Sinks;
    fn make_writer(&'a self) -> Sinks {
        self.clone()
    }
}

/// Formats events.
#[derive(Clone)]
struct Layout {
    format: Format,
    level: Level,
    clock: Arc<dyn Clock>,
}

impl<S, N> FormatEvent<S, N> for Layout
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let level = match (metadata.target(), *metadata.level()) {
            (FATAL, _) => Level::Fatal,
            (PANIC, _) => Level::Panic,
            (_, tracing::Level::ERROR) => Level::Error,
            (_, tracing::Level::WARN) => Level::Warn,
            (_, tracing::Level::INFO) => Level::Info,
            (_, tracing::Level::DEBUG | tracing::Level::TRACE) => Level::Debug,
        };
        if level < self.level {
            return Ok(());
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let head = Head {
            level,
            wall: self.clock.wall(),
            logger: (metadata.target() == "raft").then_some("raft"),
            caller: &caller(metadata.file(), metadata.line()),
            message: &fields.message,
        };
        let mut line = String::new();
        format_line(&mut line, self.format, &head, &fields.others)?;
        out.write_str(&line)
    }
}

/// `dir/file.rs:N`.
pub fn caller(file: Option<&str>, line: Option<u32>) -> String {
    let file = file.unwrap_or("unknown");
    let from = file.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
    format!("{}:{}", &file[from..], line.unwrap_or(0))
}

/// What every line begins with.
struct Head<'a> {
    level: Level,
    wall: Duration,
    logger: Option<&'a str>,
    caller: &'a str,
    message: &'a str,
}

fn format_line(
    out: &mut String,
    format: Format,
    head: &Head<'_>,
    fields: &[(&'static str, String)],
) -> fmt::Result {
    let stamp = timestamp(head.wall);
    match format {
        Format::Json => {
            write!(out, "{{\"level\":\"{}\",\"ts\":\"{stamp}\",", head.level.as_str())?;
            if let Some(logger) = head.logger {
                write!(out, "\"logger\":{},", quoted(logger))?;
            }
            write!(out, "\"caller\":{},\"msg\":{}", quoted(head.caller), quoted(head.message))?;
            for (name, value) in fields {
                write!(out, ",{}:{value}", quoted(name))?;
            }
            out.push_str("}\n");
        }
        Format::Console => {
            write!(out, "{stamp}\t{}\t", head.level.as_str())?;
            if let Some(logger) = head.logger {
                write!(out, "{logger}\t")?;
            }
            write!(out, "{}\t{}", head.caller, head.message)?;
            for (at, (name, value)) in fields.iter().enumerate() {
                let before = if at == 0 { "\t{" } else { ", " };
                write!(out, "{before}{}: {value}", quoted(name))?;
            }
            out.push_str(if fields.is_empty() { "\n" } else { "}\n" });
        }
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// `2026-11-30T06:46:05.828865Z` of a time since the Unix epoch.
fn timestamp(wall: Duration) -> String {
    let seconds = wall.as_secs();
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let micros = wall.subsec_micros();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z")
}

/// Year, month and day of a day counted from 1970-01-01.
fn civil_date(days: u64) -> (u64, u64, u64) {
    const DAYS_400_YEARS: u64 = 146_097;
    // Counted from 0000-03-01, a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / DAYS_400_YEARS, days % DAYS_400_YEARS);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let (month, year_later) =
        if month_from_march < 10 { (month_from_march + 3, 0) } else { (month_from_march - 9, 1) };
    (era * 400 + year_of_era + year_later, month, day)
}

/// An event's message and its other fields, each as JSON text.
#[derive(Default)]
struct Fields {
    message: String,
    others: Vec<(&'static str, String)>,
}

impl Fields {
    fn add(&mut self, field: &Field, json: String) {
        self.others.push((field.name(), json));
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.add(field, quoted(value));
        }
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.to_string());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.to_string());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.to_string());
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, serde_json::Value::from(value).to_string());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text;
        } else if text.starts_with('[') && serde_json::from_str::<Vec<serde_json::Value>>(&text).is_ok() {
            self.add(field, text);
        } else {
            self.add(field, quoted(&text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::Moment;
    use futures::future::BoxFuture;

    struct Stopped;
    impl Clock for Stopped {
        fn now(&self) -> Moment {
            Moment(0)
        }
        fn wall(&self) -> Duration {
            Duration::new(1_796_021_165, 828_865_999)
        }
        fn sleep_until(&self, _: Moment) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);
    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines(level: Level, format: Format, log: impl FnOnce()) -> String {
        let memory = Memory::default();
        let sinks = Sinks(Arc::new(Mutex::new(vec![Box::new(memory.clone())])));
        let layout = Layout { format, level, clock: Arc::new(Stopped) };
        tracing::subscriber::with_default(subscriber(layout, sinks), log);
        let bytes = memory.0.lock().unwrap().clone();
        let text = String::from_utf8(bytes).unwrap();
        // The line number moves with every change of this file.
        let number = text.find("logging.rs:").map(|at| {
            let digits = &text[at + 11..];
            digits[..digits.find(|c: char| !c.is_ascii_digit()).unwrap()].to_owned()
        });
        number.map_or(text.clone(), |number| text.replace(&format!("rs:{number}"), "rs:N"))
    }

    #[test]
    fn json_lines_have_the_keys_in_etcds_order() {
        let line = lines(Level::Info, Format::Json, || {
            tracing::info!(
                "data-dir" = "d",
                count = 3,
                on = true,
                "listen-urls" = ?list(["http://a:1", "http://b:2"]),
                error = %"a \"quoted\" one",
                "starting an etcd server"
            );
        });
        assert_eq!(
            line,
            concat!(
                r#"{"level":"info","ts":"2026-11-30T06:46:05.828865Z","caller":"server/logging.rs:N","#,
                r#""msg":"starting an etcd server","data-dir":"d","count":3,"on":true,"#,
                r#""listen-urls":["http://a:1","http://b:2"],"error":"a \"quoted\" one"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn targets_raise_the_level_and_name_the_logger() {
        let line = lines(Level::Info, Format::Json, || tracing::error!(target: FATAL, "x"));
        assert!(line.starts_with(r#"{"level":"fatal","ts""#), "{line}");
        let line = lines(Level::Info, Format::Json, || tracing::info!(target: "raft", "x"));
        assert!(line.contains(r#""logger":"raft","caller""#), "{line}");
    }

    #[test]
    fn console_lines_are_separated_by_tabs() {
        let line = lines(Level::Info, Format::Console, || tracing::warn!(a = 1, b = "x", "said"));
        assert_eq!(
            line,
            "2026-11-30T06:46:05.828865Z\twarn\tserver/logging.rs:N\tsaid\t{\"a\": 1, \"b\": \"x\"}\n"
        );
        let line = lines(Level::Info, Format::Console, || tracing::warn!("said"));
        assert_eq!(line, "2026-11-30T06:46:05.828865Z\twarn\tserver/logging.rs:N\tsaid\n");
    }

    #[test]
    fn levels_below_the_chosen_one_are_silent() {
        let all = || {
            tracing::debug!("a");
            tracing::info!("a");
            tracing::warn!("a");
            tracing::error!("a");
            tracing::error!(target: FATAL, "a");
        };
        let count = |level| lines(level, Format::Json, all).lines().count();
        let levels = [Level::Debug, Level::Info, Level::Warn, Level::Error, Level::Panic, Level::Fatal];
        assert_eq!(levels.map(count), [5, 4, 3, 2, 1, 1]);
    }

    #[test]
    fn dates_are_right_around_leap_days_and_ends_of_years() {
        let cases = [
            (0, (1970, 1, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_786, (2026, 11, 29)),
            (20_787, (2026, 11, 30)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ];
        for (days, want) in cases {
            assert_eq!(civil_date(days), want, "day {days}");
        }
    }

    #[test]
    fn mistakes_have_the_texts_of_etcd() {
        let text = |level, format, outputs| Options::parse(level, format, outputs).unwrap_err().to_string();
        assert_eq!(text("x", "json", "default"), "unrecognized level: \"x\"");
        assert_eq!(text("info", "x", "default"), "unknown log format: x, supported values json, console");
        assert_eq!(
            text("info", "json", "default,stderr"),
            "multi logoutput for \"default\" is not supported yet"
        );
        let fine = Options::parse("warn", "console", "stdout,/a").unwrap();
        assert_eq!(fine.outputs, [Output::Stdout, Output::File("/a".to_owned())]);
    }
}
