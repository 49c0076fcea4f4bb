//! How a command fails: a text and an exit code (facts: ctl, "Global rules").

/// `text` goes to stderr as `Error: text`; `None` when everything was said already.
#[derive(Debug)]
pub struct Failure {
    pub text: Option<String>,
    pub exit_code: i32,
}

impl Failure {
    /// Any code.
    pub fn new(exit_code: i32, text: impl Into<String>) -> Failure {
        Failure { text: Some(text.into()), exit_code }
    }

    /// A server's error and most others.
    pub fn server(text: impl Into<String>) -> Failure {
        Failure::new(1, text)
    }

    /// Bad or missing input lines.
    pub fn input(text: impl Into<String>) -> Failure {
        Failure::new(3, text)
    }

    /// A format or option value that the command does not know.
    pub fn option(text: impl Into<String>) -> Failure {
        Failure::new(4, text)
    }

    /// Bad arguments.
    pub fn arguments(text: impl Into<String>) -> Failure {
        Failure::new(128, text)
    }

    /// Everything was said already.
    pub fn said(exit_code: i32) -> Failure {
        Failure { text: None, exit_code }
    }
}

/// Says what failed, if it was not said already; the exit code of the program.
pub fn exit_code(outcome: Result<(), Failure>) -> i32 {
    let Err(failure) = outcome else { return 0 };
    if let Some(text) = &failure.text {
        eprintln!("Error: {text}");
    }
    failure.exit_code
}

/// A status as etcdctl shows it: the message alone, but for deadlines.
pub fn text_of(status: &tonic::Status) -> String {
    match status.code() {
        tonic::Code::DeadlineExceeded => "context deadline exceeded".to_owned(),
        _ => status.message().to_owned(),
    }
}
