#![no_main]

use prost::Message;
use quorate::{machine::State, members::Members, proto::quorate::v1::StoreMark};

// What a mark refuses is an answer; what it takes it gives back.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(mark) = StoreMark::decode(bytes) else { return };
    let mut state = State::new(Members::default());
    if state.load_mark(&mark).is_ok() {
        let again = state.mark();
        assert_eq!((again.applied_index, again.applied_term), (mark.applied_index, mark.applied_term));
    }
});
