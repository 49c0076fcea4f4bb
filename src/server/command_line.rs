//! Go's flag syntax, driven by the table of flags: `-flag` and `--flag` are
//! equal, `--flag=value` or `--flag value`, switches only `--flag` or
//! `--flag=bool`; the first other word, or `--`, ends the flags.
//! Owns the texts of what is wrong with a command line. **Never** reads the
//! environment, prints or exits.

use super::flags::{self, Flag, Kind};
use super::values::Value;

/// Flags that were given, in order; a later one overrides an earlier one.
#[derive(Debug, Default)]
pub struct CommandLine {
    pub given: Vec<(&'static Flag, Value)>,
    /// Words after the flags.
    pub words: Vec<String>,
}

/// Why a command line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    #[error("flag: help requested")]
    Help,
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag provided but not defined: -{0}")]
    Unknown(String),
    #[error("flag needs an argument: -{0}")]
    NoValue(String),
    #[error("invalid boolean value {value:?} for -{name}: {what}")]
    BadSwitch { name: String, value: String, what: String },
    #[error("invalid value {value:?} for flag -{name}: {what}")]
    BadValue { name: String, value: String, what: String },
}

impl CommandLine {
    /// Reads the words that follow the program's name.
    pub fn parse(args: &[String]) -> Result<CommandLine, Mistake> {
        let mut line = CommandLine::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let Some(body) = flag_body(arg)? else {
                line.words.push(arg.clone());
                break;
            };
            if body.is_empty() {
                break;
            }
            let (name, value) = match body.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (body, None),
            };
            let Some(flag) = flags::find(name) else {
                if flags::IGNORED.contains(&name) {
                    continue;
                }
                return Err(if matches!(name, "h" | "help") {
                    Mistake::Help
                } else {
                    Mistake::Unknown(name.to_owned())
                });
            };
            line.given.push((flag, flag_value(flag, value, &mut rest)?));
        }
        line.words.extend(rest.cloned());
        Ok(line)
    }
}

/// What follows the dashes: empty for `--`, `None` for a word that is no flag.
fn flag_body(arg: &str) -> Result<Option<&str>, Mistake> {
    let body = match arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) {
        None | Some("") if arg != "--" => return Ok(None),
        Some(body) => body,
        None => return Ok(None),
    };
    if body.starts_with(['-', '=']) {
        return Err(Mistake::Syntax(arg.to_owned()));
    }
    Ok(Some(body))
}

fn flag_value<'a>(
    flag: &'static Flag,
    value: Option<&str>,
    rest: &mut impl Iterator<Item = &'a String>,
) -> Result<Value, Mistake> {
    let name = || flag.name.to_owned();
    if flag.kind == Kind::Bool {
        let value = value.unwrap_or("true");
        return Value::parse(flag.kind, value).map_err(|what| Mistake::BadSwitch {
            name: name(),
            value: value.to_owned(),
            what,
        });
    }
    let value = match value {
        Some(value) => value,
        None => rest.next().ok_or_else(|| Mistake::NoValue(name()))?,
    };
    Value::parse(flag.kind, value).map_err(|what| Mistake::BadValue {
        name: name(),
        value: value.to_owned(),
        what,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `want`: `name=value` of each flag and the words, or the mistake's text.
    fn check(args: &[&str], want: &str) {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let got = match CommandLine::parse(&args) {
            Err(mistake) => mistake.to_string(),
            Ok(line) => {
                let given = line.given.iter().map(|(flag, value)| format!("{}={value:?}", flag.name));
                given.chain(line.words.iter().cloned()).collect::<Vec<_>>().join(" ")
            }
        };
        assert_eq!(got, want, "{args:?}");
    }

    #[test]
    fn both_dashes_and_both_ways_to_give_a_value() {
        check(&["-name", "a", "--name=b"], "name=Text(\"a\") name=Text(\"b\")");
        check(&["--name="], "name=Text(\"\")");
        check(&["--name", "--x"], "name=Text(\"--x\")");
        check(&["--initial-cluster=a=b"], "initial-cluster=Text(\"a=b\")");
        check(&["--pre-vote", "--pre-vote=false"], "pre-vote=Bool(true) pre-vote=Bool(false)");
    }

    #[test]
    fn other_words_end_the_flags() {
        check(&["foo", "--name=a"], "foo --name=a");
        check(&["--name=a", "foo"], "name=Text(\"a\") foo");
        check(&["--pre-vote", "false"], "pre-vote=Bool(true) false");
        check(&["-"], "-");
        check(&["--"], "");
        check(&["--", "--nosuch"], "--nosuch");
        check(&[""], "");
    }

    #[test]
    fn ignored_switches_take_no_word() {
        check(&["--v", "-vv=9", "--name=a"], "name=Text(\"a\")");
        check(&["--snapshot", "5"], "5");
    }

    #[test]
    fn mistakes_have_the_texts_of_etcd() {
        check(&["--nosuch"], "flag provided but not defined: -nosuch");
        check(&["-nosuch=1"], "flag provided but not defined: -nosuch");
        check(&["--discovery=x"], "flag provided but not defined: -discovery");
        check(&["--name"], "flag needs an argument: -name");
        check(&["---x"], "bad flag syntax: ---x");
        check(&["--=x"], "bad flag syntax: --=x");
        check(&["-=x"], "bad flag syntax: -=x");
        check(&["--help"], "flag: help requested");
        check(&["-h"], "flag: help requested");
        check(&["--snapshot-count=x"], "invalid value \"x\" for flag -snapshot-count: parse error");
        check(
            &["--election-timeout=99999999999999999999"],
            "invalid value \"99999999999999999999\" for flag -election-timeout: value out of range",
        );
        check(&["--pre-vote=maybe"], "invalid boolean value \"maybe\" for -pre-vote: parse error");
        check(
            &["--backend-batch-interval=5"],
            "invalid value \"5\" for flag -backend-batch-interval: parse error",
        );
        check(
            &["--listen-client-urls=foo"],
            "invalid value \"foo\" for flag -listen-client-urls: URL scheme must be http, https, unix, or unixs: foo",
        );
        check(
            &["--listen-client-urls=http://[::1"],
            "invalid value \"http://[::1\" for flag -listen-client-urls: parse \"http://[::1\": missing ']' in host",
        );
        check(
            &["--initial-cluster-state=x"],
            "invalid value \"x\" for flag -initial-cluster-state: invalid value",
        );
        check(
            &["--feature-gates=X=true"],
            "invalid value \"X=true\" for flag -feature-gates: unrecognized feature gate: X",
        );
    }
}
