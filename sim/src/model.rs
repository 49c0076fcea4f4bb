//! Stand-in until the reference model is merged.
pub struct Refusal;
impl Refusal {
    pub fn from_status(_: i32, _: &str) -> Option<Refusal> {
        None
    }
}
