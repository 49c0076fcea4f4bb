//! A command line that does not parse, in etcdctl's words.

/// Prints what clap found wrong and returns etcdctl's exit code for it.
pub fn report(error: &clap::Error, program: &str) -> i32 {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => String::new(),
    };
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // A closed standard output is no failure of a help text.
            let _ = error.print();
            return 0;
        }
        ErrorKind::UnknownArgument => {
            let flag = word(ContextKind::InvalidArg);
            match flag.strip_prefix("--") {
                Some(_) => eprintln!("Error: unknown flag: {}", flag.split('=').next().unwrap_or_default()),
                None => {
                    let short = flag.trim_start_matches('-').chars().next().unwrap_or('-');
                    eprintln!("Error: unknown shorthand flag: '{short}' in {flag}");
                }
            }
        }
        ErrorKind::InvalidSubcommand => {
            eprintln!(
                "Error: unknown command \"{}\" for \"{program}\"",
                word(ContextKind::InvalidSubcommand)
            );
            eprintln!("Run '{program} --help' for usage.");
        }
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let flag = word(ContextKind::InvalidArg);
            let name = flag.split_whitespace().next().unwrap_or_default();
            eprintln!("Error: invalid argument \"{}\" for \"{name}\" flag", word(ContextKind::InvalidValue));
        }
        _ => eprintln!("Error: {}", error.to_string().trim_start_matches("error: ").trim_end()),
    }
    1
}
