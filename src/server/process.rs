//! A member as a process: command line, log, runtime, signals, exit status.
//! Production only.
//!
//! Exit status: 0 help and version, 1 any failure, 2 a command line that does
//! not parse or a panic; after a clean stop the process dies by the signal
//! (143, 130), or ends with 0 as the first process of a container, which no
//! signal can kill. A signal before clients are served ends it at once.

use super::command_line::{CommandLine, Mistake};
use super::settings::{Notice, Settings, SettingsError};
use super::{Config, help, logging, start};
use crate::env::{Env, os};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::ffi::OsString;
use std::panic::PanicHookInfo;
use std::process::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Threads that serve the disk.
const IO_THREADS: usize = 4;
const FAILURE: u8 = 1;
const MISTAKE: u8 = 2;

/// Runs a member until it ends. `args` begins with the program's name.
pub fn run(
    args: impl Iterator<Item = OsString>,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> ExitCode {
    let text = |word: OsString| word.to_string_lossy().into_owned();
    let args: Vec<String> = args.map(text).collect();
    let variables: Vec<(String, String)> = variables.map(|(key, value)| (text(key), text(value))).collect();
    let words = args.get(1..).unwrap_or_default();
    if let Some(command @ ("gateway" | "grpc-proxy")) = words.first().map(String::as_str) {
        eprintln!("quorate {command} is not served yet");
        return ExitCode::from(FAILURE);
    }
    let line = match CommandLine::parse(words) {
        Ok(line) => line,
        Err(Mistake::Help) => {
            eprintln!("{}", help::USAGE);
            print!("{}", help::flag_list());
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            eprintln!("{mistake}\n{}", help::USAGE);
            return ExitCode::from(MISTAKE);
        }
    };
    let settings = Settings::gather(&line, &variables);
    if settings.as_ref().is_ok_and(Settings::version) {
        print!("{}", help::version());
        return ExitCode::SUCCESS;
    }
    let env = os::env(IO_THREADS);
    std::panic::set_hook(Box::new(end_by_panic));
    match configure(&args, settings, &env) {
        Ok(config) => run_member(config, env),
        Err(failed) => failed,
    }
}

/// Sets up the log, says what deserves a word and gives the member's settings.
fn configure(
    args: &[String],
    settings: Result<Settings, SettingsError>,
    env: &Env,
) -> Result<Config, ExitCode> {
    let install = |options: logging::Options| options.install(env.clock.clone()).map_err(SettingsError::from);
    let logging = match &settings {
        Ok(settings) => settings.logging().and_then(install),
        Err(_) => Err(SettingsError::Word(String::new())),
    };
    if logging.is_err() {
        install(logging::Options::default()).expect("stderr needs no opening");
    }
    if let Err(error @ SettingsError::Conflict(variable)) = &settings {
        tracing::error!(target: logging::FATAL, { "environment-variable" = variable.as_str() }, "{error}");
        return Err(ExitCode::from(FAILURE));
    }
    if let Ok(settings) = &settings {
        settings.notices.iter().for_each(say);
    }
    tracing::info!(args = ?logging::list(args), "Running: ");
    let config = settings.and_then(|settings| {
        logging?;
        settings.config()
    });
    let config = config.map_err(|error| {
        tracing::warn!(error = %error, "failed to verify flags");
        if error == SettingsError::Config(super::config::ConfigError::AdvertiseMissing) {
            tracing::warn!(error = %error, "advertise client URLs are not set");
        }
        ExitCode::from(FAILURE)
    })?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    if config.data_dir.as_os_str().is_empty() {
        tracing::warn!("data-dir" = %config.data_dir().display(), "'data-dir' was empty; using default");
    }
    Ok(config)
}

fn say(notice: &Notice) {
    match notice {
        Notice::UnknownVariable(pair) => {
            tracing::warn!("environment-variable" = pair.as_str(), "unrecognized environment variable");
        }
        Notice::SpecialVariable { key, value } => {
            tracing::warn!(
                key = key.as_str(),
                value = value.as_str(),
                "cannot set special environment variable"
            );
        }
        Notice::Deprecated(name) => {
            tracing::warn!("--{name} is deprecated and has no effect");
        }
        Notice::Feature(name) => {
            tracing::warn!(
                feature = *name,
                "this feature is known but not served yet; switching it has no effect"
            );
        }
        Notice::Later(name) => {
            tracing::warn!(flag = *name, "this flag is known but not served yet; it has no effect");
        }
    }
}

/// How a member's life ended.
enum End {
    Failed,
    BySignal(i32),
}

fn run_member(config: Config, env: Env) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("api").build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(target: logging::FATAL, error = logging::plain(&error), "cannot start threads");
            return ExitCode::from(FAILURE);
        }
    };
    let end = runtime.block_on(live(config, env));
    // Tasks that are left belong to connections that were cut off.
    runtime.shutdown_background();
    match end {
        End::Failed => ExitCode::from(FAILURE),
        End::BySignal(number) => die_by(number),
    }
}

async fn live(config: Config, env: Env) -> End {
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => {
            tracing::error!(target: logging::FATAL, error = logging::plain(&error), "cannot receive signals");
            return End::Failed;
        }
    };
    let server = tokio::select! {
        biased;
        number = signals.next() => return End::BySignal(number),
        started = start::start(config, env) => match started {
            Ok(server) => server,
            Err(error) => {
                tracing::error!(target: logging::FATAL, error = %error, "{}", error.cause());
                return End::Failed;
            }
        },
    };
    tokio::select! {
        biased;
        reason = server.failed() => failed(&reason),
        number = signals.next() => {
            if !server.is_ready() {
                return End::BySignal(number);
            }
            let name = if number == SIGTERM { "terminated" } else { "interrupt" };
            tracing::info!(signal = name, "received signal; shutting down");
            tokio::select! {
                biased;
                // Who asks twice does not want to wait.
                number = signals.next() => End::BySignal(number),
                () = server.stop() => End::BySignal(number),
            }
        }
    }
}

fn failed(reason: &str) -> End {
    tracing::error!(target: logging::FATAL, error = reason, "the member stopped by itself");
    End::Failed
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// The number of the next signal that asks for an end.
    async fn next(&mut self) -> i32 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => SIGTERM,
            _ = self.interrupt.recv() => SIGINT,
        }
    }
}

/// Dies by the signal as if it had never been caught, so that a parent sees why.
fn die_by(number: i32) -> ExitCode {
    if std::process::id() != 1 {
        // On failure there is no better end than a plain one.
        drop(signal_hook::low_level::emulate_default_handler(number));
    }
    ExitCode::SUCCESS
}

/// A broken invariant stops the member: no task may limp on with the rest gone.
fn end_by_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned());
    let caller = logging::caller(info.location().map(|at| at.file()), info.location().map(|at| at.line()));
    logging::write_panic(&message, &caller);
    std::process::exit(i32::from(MISTAKE));
}
