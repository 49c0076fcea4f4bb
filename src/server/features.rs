//! Features that `--feature-gates` switches: etcd's names, stages and defaults,
//! and what Quorate makes of each. **Never** reads a command line itself.

/// How far etcd trusts a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Switches others.
    Special,
    Alpha,
    Beta,
}

impl Stage {
    /// As the metric names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Special => "",
            Stage::Alpha => "ALPHA",
            Stage::Beta => "BETA",
        }
    }
}

/// One feature.
#[derive(Debug)]
pub struct Gate {
    pub name: &'static str,
    pub stage: Stage,
    pub default: bool,
    /// What the switch does here needs no word: it is served, or is a matter of etcd's inside.
    pub is_settled: bool,
}

const fn gate(name: &'static str, stage: Stage, default: bool, is_settled: bool) -> Gate {
    Gate { name, stage, default, is_settled }
}

/// Sorted by name.
pub static GATES: &[Gate] = &[
    gate("AllAlpha", Stage::Special, false, true),
    gate("AllBeta", Stage::Special, false, true),
    gate("CompactHashCheck", Stage::Alpha, false, true),
    gate("FastLeaseKeepAlive", Stage::Beta, true, false),
    gate("InitialCorruptCheck", Stage::Alpha, false, true),
    gate("LeaseCheckpoint", Stage::Alpha, false, false),
    gate("LeaseCheckpointPersist", Stage::Alpha, false, false),
    gate("PriorityRequest", Stage::Alpha, false, false),
    gate("SetMemberLocalAddr", Stage::Alpha, false, false),
    // Nothing waits for a cleaning here, so nobody needs to be sent elsewhere.
    gate("StopGRPCServiceOnDefrag", Stage::Alpha, false, true),
    gate("TxnModeWriteWithSharedBuffer", Stage::Beta, true, true),
];

/// Which features are on; in the order of [`GATES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features(Vec<bool>);

impl Default for Features {
    fn default() -> Features {
        Features(GATES.iter().map(|gate| gate.default).collect())
    }
}

impl Features {
    /// From `Name=bool,...`; later words win, and a feature's own word over that for all of its stage.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Features, String> {
        let mut given: Vec<Option<bool>> = vec![None; GATES.len()];
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            let Some((name, on)) = word.split_once('=') else {
                return Err(format!("missing bool value for {word}"));
            };
            let (name, on) = (name.trim(), on.trim());
            let Some(value) = super::values::parse_bool(on) else {
                return Err(format!(
                    "invalid value of {name}={on}, err: strconv.ParseBool: parsing {on:?}: invalid syntax"
                ));
            };
            let Some(place) = GATES.iter().position(|gate| gate.name == name) else {
                return Err(format!("unrecognized feature gate: {name}"));
            };
            given[place] = Some(value);
        }
        let all = |name: &str| GATES.iter().position(|gate| gate.name == name).and_then(|place| given[place]);
        let (alpha, beta) = (all("AllAlpha"), all("AllBeta"));
        let of_stage = |gate: &Gate| match gate.stage {
            Stage::Special => None,
            Stage::Alpha => alpha,
            Stage::Beta => beta,
        };
        let on = GATES.iter().zip(&given);
        Ok(Features(on.map(|(gate, own)| own.or(of_stage(gate)).unwrap_or(gate.default)).collect()))
    }

    pub fn list(&self) -> impl Iterator<Item = (&'static Gate, bool)> {
        GATES.iter().zip(self.0.iter().copied())
    }

    /// Whether the feature of this name is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.list().any(|(gate, on)| gate.name == name && on)
    }

    /// Those that were switched and mean nothing here yet.
    pub fn unserved(&self) -> impl Iterator<Item = &'static str> {
        self.list().filter(|(gate, on)| !gate.is_settled && *on != gate.default).map(|(gate, _)| gate.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_equal_the_facts() {
        let facts: Vec<(String, String, bool)> = include_str!("../../tests/facts/server-flags.tsv")
            .lines()
            .skip_while(|line| !line.starts_with("# FEATURE GATES"))
            .skip(2)
            .take_while(|line| !line.starts_with('#'))
            .map(|line| {
                let cells: Vec<&str> = line.split('\t').collect();
                (cells[0].to_owned(), cells[1].replace("special", ""), cells[2] == "true")
            })
            .collect();
        let ours: Vec<_> = GATES
            .iter()
            .map(|gate| (gate.name.to_owned(), gate.stage.as_str().to_owned(), gate.default))
            .collect();
        assert_eq!(ours, facts);
    }

    #[test]
    fn a_features_own_word_wins_over_that_for_its_stage() {
        let on = |text: &str| {
            let features = Features::parse(text).unwrap();
            features.list().filter(|(_, on)| *on).map(|(gate, _)| gate.name).collect::<Vec<_>>().join(" ")
        };
        let beta = "FastLeaseKeepAlive TxnModeWriteWithSharedBuffer";
        assert_eq!(on(""), beta);
        assert_eq!(on("AllBeta=false"), "");
        assert_eq!(on("AllBeta=false,FastLeaseKeepAlive=true"), "FastLeaseKeepAlive");
        assert_eq!(
            on("InitialCorruptCheck=T"),
            format!("FastLeaseKeepAlive InitialCorruptCheck {}", &beta[19..])
        );
        let all = Features::parse("AllAlpha=true,LeaseCheckpoint=false").unwrap();
        assert!(all.is_on("CompactHashCheck") && !all.is_on("LeaseCheckpoint"));
        assert_eq!(
            all.unserved().collect::<Vec<_>>(),
            ["LeaseCheckpointPersist", "PriorityRequest", "SetMemberLocalAddr"]
        );
    }
}
