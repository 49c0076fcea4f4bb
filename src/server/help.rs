//! What `--help` and `--version` print, and the words after a command line
//! that does not parse. All of it follows from the table of flags.

use super::features::GATES;
use super::flags::{FLAGS, IGNORED, Kind, Use};
use std::fmt::Write;

/// How to call the program; on stderr.
pub const USAGE: &str = "Usage:

  quorate [flags]
    Start a member.

  quorate --version
    Print the version.

  quorate -h | --help
    Print this text and the flags.

Every flag can be given as a variable: ETCD_ and its name in capitals, with _ for -
(--max-txn-ops is ETCD_MAX_TXN_OPS); giving both is an error.
";

/// The list of flags; on stdout.
pub fn flag_list() -> String {
    let mut out = String::new();
    let mut group = "";
    for flag in FLAGS {
        if flag.group != group {
            group = flag.group;
            write!(out, "\n{group}:\n").expect("a String takes everything");
        }
        let note = match flag.usage {
            Use::Served => "",
            Use::Moot => " (accepted, without effect)",
            Use::Later => " (not served yet: a warning)",
            Use::Refused => " (not served yet: refused)",
        };
        writeln!(out, "  --{} '{}'\n    {}{note}.", flag.name, flag.default, capital(flag.meaning))
            .expect("a String takes everything");
        if flag.kind == Kind::Gates {
            let names: Vec<&str> = GATES.iter().map(|gate| gate.name).collect();
            writeln!(out, "    Features: {}.", names.join(", ")).expect("a String takes everything");
        }
    }
    writeln!(out, "\nAccepted and ignored, as switches: {}.", IGNORED.join(", "))
        .expect("a String takes everything");
    out
}

/// Four lines; the first is the one that scripts read.
pub fn version() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "etcd Version: {}\nQuorate Version: {}\nGit SHA: {}\nOS/Arch: {}/{architecture}\n",
        crate::api::ETCD_VERSION,
        env!("CARGO_PKG_VERSION"),
        option_env!("QUORATE_GIT_SHA").unwrap_or("unknown"),
        std::env::consts::OS,
    )
}

fn capital(text: &str) -> String {
    // Names such as SO_REUSEPORT and lists such as "debug, info" stay as they are.
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |first| first.to_uppercase().chain(chars).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn help_is_held_by_a_snapshot() {
        insta::assert_snapshot!("help", format!("{}\n---\n{}", super::USAGE, super::flag_list()));
    }

    #[test]
    fn the_first_line_of_version_is_etcds() {
        let text = super::version();
        assert!(text.starts_with("etcd Version: 3.7."), "{text}");
        assert_eq!(text.lines().count(), 4);
    }
}
