//! The offline tool: parses nothing itself, ends with utl's exit code.

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime needs only a few file descriptors");
    let code = runtime.block_on(quorate::utl::run(std::env::args_os().collect(), quorate::env::os::env(2)));
    std::process::exit(code);
}
