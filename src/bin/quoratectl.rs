//! The command line client: parses nothing itself, ends with ctl's exit code.

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs only a few file descriptors");
    let code = runtime.block_on(quorate::ctl::run(std::env::args_os().collect(), quorate::env::os::env(1)));
    std::process::exit(code);
}
