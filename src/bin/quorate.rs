//! The server's binary; everything is in `quorate::server`.

#[cfg(not(madsim))]
fn main() -> std::process::ExitCode {
    quorate::server::process::run(std::env::args_os(), std::env::vars_os())
}

#[cfg(madsim)]
fn main() -> std::process::ExitCode {
    eprintln!("this binary was built for simulation; run quorate-sim, or build without cfg(madsim)");
    std::process::ExitCode::FAILURE
}
