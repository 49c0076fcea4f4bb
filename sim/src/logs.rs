//! The members' own log lines in the journal.
//!
//! A subscriber of our own and not `tracing-subscriber`'s: that one makes hash
//! maps, which would shift the keys of every map made after it, and a replay
//! with its lines kept would not be the run that is replayed.

use crate::journal::note;
use std::fmt::{Debug, Write};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Writes events of the product into the journal.
pub struct Logs;

impl Subscriber for Logs {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("quorate") && *metadata.level() <= Level::DEBUG
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let (level, target) = (event.metadata().level(), event.metadata().target());
        note(|| {
            format!("log node {} {level} {target}: {}{}", madsim::plugin::node(), text.message, text.fields)
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let written = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
        written.expect("a String takes any text");
    }
}
