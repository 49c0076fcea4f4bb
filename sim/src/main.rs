//! `quorate-sim`: runs seeded lives of whole clusters. All of it is in [`quorate_sim::runner`].

#[cfg(madsim)]
fn main() -> std::process::ExitCode {
    quorate_sim::runner::main()
}

#[cfg(not(madsim))]
fn main() -> std::process::ExitCode {
    eprintln!("quorate-sim: built without cfg(madsim): nothing would be simulated.");
    eprintln!(
        "Run it as `cargo sim ...`, and unset RUSTFLAGS: even an empty one replaces the alias's flags."
    );
    std::process::ExitCode::from(2)
}
