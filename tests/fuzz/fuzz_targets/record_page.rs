#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quorate::mvcc::fuzz::record_page(bytes));
