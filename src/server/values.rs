//! Values of flags as Go's flag package writes them, so that every command
//! line that etcd takes means the same here: numbers with prefixes and
//! underscores, durations such as `1m30s`, booleans such as `T`.
//! Owns the error texts of bad values. **Never** knows a flag's meaning.

use super::features::Features;
use super::flags::Kind;
use super::urls::{Url, parse_list};

/// A parsed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Bool(bool),
    Uint(u64),
    Int(i64),
    /// Nanoseconds, as in Go; may be negative.
    DurationNs(i64),
    Text(String),
    Urls(Vec<Url>),
}

impl Value {
    /// The value that `text` stands for, or what is wrong with it.
    pub fn parse(kind: Kind, text: &str) -> Result<Value, String> {
        match kind {
            Kind::Bool => parse_bool(text).map(Value::Bool).ok_or_else(|| PARSE.to_owned()),
            Kind::Uint => parse_uint(text).map(Value::Uint).map_err(str::to_owned),
            Kind::Uint32 => parse_uint32(text).map(Value::Uint),
            Kind::Int => parse_int(text).map(Value::Int).map_err(str::to_owned),
            Kind::Duration => parse_duration_ns(text).map(Value::DurationNs).ok_or_else(|| PARSE.to_owned()),
            Kind::Text => Ok(Value::Text(text.to_owned())),
            Kind::Urls => parse_urls(text).map(Value::Urls),
            Kind::Origins => parse_origins(text).map(|()| Value::Text(text.to_owned())),
            Kind::State => one_of(text, &["new", "existing"], "invalid value"),
            Kind::Phase => one_of(
                text,
                &["write-only", "write-only-skip-check", "write-only-drop-data", "gone"],
                &format!("invalid value {text:?}"),
            ),
            Kind::Gates => Features::parse(text).map(|_| Value::Text(text.to_owned())),
        }
    }
}

const PARSE: &str = "parse error";
const RANGE: &str = "value out of range";

fn one_of(text: &str, allowed: &[&str], complaint: &str) -> Result<Value, String> {
    if allowed.contains(&text) { Ok(Value::Text(text.to_owned())) } else { Err(complaint.to_owned()) }
}

pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Digits in the base that their prefix names (none: ten, `0`: eight).
fn parse_uint(text: &str) -> Result<u64, &'static str> {
    let lower = text.to_ascii_lowercase();
    let (digits, base, prefixed) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16, true),
        [b'0', b'b', ..] => (&lower[2..], 2, true),
        [b'0', b'o', ..] => (&lower[2..], 8, true),
        [b'0', _, ..] => (&lower[1..], 8, true),
        _ => (lower.as_str(), 10, false),
    };
    // An underscore stands between digits, or after a prefix, and nowhere else.
    let misplaced = digits.ends_with('_') || digits.contains("__") || (digits.starts_with('_') && !prefixed);
    let plain: String = digits.chars().filter(|c| *c != '_').collect();
    if misplaced || plain.is_empty() || !plain.chars().all(|c| c.is_digit(base)) {
        return Err(PARSE);
    }
    u64::from_str_radix(&plain, base).map_err(|_| RANGE)
}

fn parse_uint32(text: &str) -> Result<u64, String> {
    let number = match parse_uint(text) {
        Ok(number) if number <= u64::from(u32::MAX) => return Ok(number),
        Ok(_) => RANGE,
        Err(RANGE) => RANGE,
        Err(_) => "invalid syntax",
    };
    Err(format!("strconv.ParseUint: parsing {text:?}: {number}"))
}

fn parse_int(text: &str) -> Result<i64, &'static str> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = i128::from(parse_uint(digits)?);
    i64::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| RANGE)
}

/// Nanoseconds of `1h2m3.5s` and the like: numbers, each with its unit.
pub fn parse_duration_ns(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(number_end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let unit_ns: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') || number.len() > 18 {
            return None;
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        let fraction: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        total = total.checked_add(whole.checked_mul(unit_ns)?)?.checked_add(fraction * unit_ns / scale)?;
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

/// `1h2m3.5s`, as Go prints a duration.
pub fn duration_text(ns: u64) -> String {
    let trimmed = |value: u64, unit_ns: u64, unit: &str| {
        let digits = unit_ns.ilog10() as usize;
        let text = format!("{}.{:0digits$}", value / unit_ns, value % unit_ns);
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match ns {
        0 => "0s".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => trimmed(ns, 1_000, "µs"),
        1_000_000..1_000_000_000 => trimmed(ns, 1_000_000, "ms"),
        _ => {
            let minutes = ns / 60_000_000_000;
            let seconds = trimmed(ns % 60_000_000_000, 1_000_000_000, "s");
            match (minutes / 60, minutes % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

fn parse_urls(text: &str) -> Result<Vec<Url>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    parse_list(text).map_err(|error| error.to_string())
}

fn parse_origins(text: &str) -> Result<(), String> {
    if text.is_empty() || text == "*" { Ok(()) } else { parse_urls(text).map(|_| ()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: Kind, text: &str, want: Result<Value, &str>) {
        assert_eq!(Value::parse(kind, text), want.map_err(str::to_owned), "{kind:?} {text:?}");
    }

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        check(Kind::Uint, "10000", Ok(Value::Uint(10_000)));
        check(Kind::Uint, "0x1F", Ok(Value::Uint(31)));
        check(Kind::Uint, "017", Ok(Value::Uint(15)));
        check(Kind::Uint, "0b11", Ok(Value::Uint(3)));
        check(Kind::Uint, "1_000", Ok(Value::Uint(1_000)));
        check(Kind::Uint, "0", Ok(Value::Uint(0)));
        for bad in ["", "x", "-1", "+1", "1_", "_1", "1__0", "1.5", "1e9", "0x", "08", " 1"] {
            check(Kind::Uint, bad, Err("parse error"));
        }
        check(Kind::Uint, "99999999999999999999", Err("value out of range"));
        check(Kind::Int, "-8", Ok(Value::Int(-8)));
        check(Kind::Int, "-9223372036854775808", Ok(Value::Int(i64::MIN)));
        check(Kind::Int, "9223372036854775808", Err("value out of range"));
        check(Kind::Int, "1e9", Err("parse error"));
        check(Kind::Uint32, "4294967295", Ok(Value::Uint(4_294_967_295)));
        check(Kind::Uint32, "x", Err("strconv.ParseUint: parsing \"x\": invalid syntax"));
        check(
            Kind::Uint32,
            "4294967296",
            Err("strconv.ParseUint: parsing \"4294967296\": value out of range"),
        );
    }

    #[test]
    fn switches_and_choices() {
        check(Kind::Bool, "T", Ok(Value::Bool(true)));
        check(Kind::Bool, "0", Ok(Value::Bool(false)));
        check(Kind::Bool, "maybe", Err("parse error"));
        check(Kind::State, "existing", Ok(Value::Text("existing".to_owned())));
        check(Kind::State, "x", Err("invalid value"));
        check(Kind::Phase, "not-yet", Err("invalid value \"not-yet\""));
        check(Kind::Gates, "X=true", Err("unrecognized feature gate: X"));
        check(Kind::Gates, "AllBeta=false", Ok(Value::Text("AllBeta=false".to_owned())));
        check(Kind::Origins, "*", Ok(Value::Text("*".to_owned())));
        check(Kind::Origins, "x", Err("URL scheme must be http, https, unix, or unixs: x"));
        check(Kind::Urls, "", Ok(Value::Urls(Vec::new())));
    }

    #[test]
    fn durations_are_read_and_printed_as_go_does() {
        let cases = [
            ("5s", Some(5_000_000_000), "5s"),
            ("1m0s", Some(60_000_000_000), "1m0s"),
            ("2h", Some(7_200_000_000_000), "2h0m0s"),
            ("1.5s", Some(1_500_000_000), "1.5s"),
            ("100ms", Some(100_000_000), "100ms"),
            ("1.25ms", Some(1_250_000), "1.25ms"),
            ("3us", Some(3_000), "3µs"),
            ("0", Some(0), "0s"),
            ("5", None, ""),
            ("", None, ""),
            ("s", None, ""),
            ("1x", None, ""),
            (".s", None, ""),
            ("1..5s", None, ""),
            ("99999999999999999h", None, ""),
        ];
        for (text, want, printed) in cases {
            assert_eq!(parse_duration_ns(text), want, "{text:?}");
            if let Some(ns) = want {
                assert_eq!(duration_text(ns.try_into().unwrap()), printed);
            }
        }
        assert_eq!(parse_duration_ns("-1s"), Some(-1_000_000_000));
    }
}
