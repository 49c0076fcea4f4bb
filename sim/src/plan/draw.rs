//! Draws a plan from a scenario and a seed.

use super::{
    Against, Ask, At, Branches, Decay, Drawn, Erase, Fault, Head, Plan, Planned, PlannedFault, Read, Retain,
    Span, Store, Test, Whom,
};
use crate::dice::Dice;
use crate::scenario::{FaultKind, Kind, Pace, Scenario};

/// The API's "to the end of all keys", and its "from the first key".
const NUL: &str = "\0";
/// Reads of one client around a transfer of leadership.
const BURST_READS_MAX: u64 = 4;
const BURST_MS: u64 = 300;
/// How often stored bytes rot in a run.
const DECAYS_MAX: usize = 3;
/// Of a disk that is nearly full.
const LEFT_BYTES_MAX: u64 = 300_000;

impl Plan {
    /// The plan that (scenario, seed) stands for.
    pub fn draw(scenario: &Scenario, seed: u64) -> Plan {
        // One stream for each purpose: a fault more moves no operation.
        let stream = |what: &str| Dice::new(&format!("{} {what}", scenario.name), seed);
        let mut swarm = stream("swarm");
        let faults_on: Vec<(FaultKind, &Pace)> = scenario
            .faults
            .iter()
            .filter(|(_, pace)| !swarm.chance(scenario.swarm_off) || pace.always)
            .map(|(kind, pace)| (*kind, pace))
            .collect();
        let mix = draw_mix(scenario, &mut swarm);
        let mut plan = Plan {
            head: Head {
                scenario: scenario.name.clone(),
                seed,
                members: scenario.members,
                clients: scenario.clients,
                heal_ms: scenario.seconds * 1000,
                liveness_ms: scenario.liveness_seconds * 1000,
                sizes: draw_sizes(scenario, &mut stream("sizes")),
                kinds: faults_on.iter().map(|(kind, _)| name(kind)).collect(),
                restart: scenario.restart,
            },
            ops: Vec::new(),
            faults: Vec::new(),
        };
        for (kind, pace) in faults_on {
            let mut dice = stream(&name(&kind));
            FaultDraw { scenario, plan: &mut plan, dice: &mut dice }.kind(kind, pace);
        }
        plan.faults.sort_by_key(|fault| fault.at_ms);
        for client in 0..scenario.clients as u32 {
            let dice = stream(&format!("client {client}"));
            OpDraw { scenario, mix: &mix, client, dice, count: 0 }.all(&mut plan.ops);
        }
        plan.draw_bursts(scenario, &mut stream("bursts"));
        plan.ops.sort_by_key(|op| (op.at_ms, op.client));
        for (place, op) in plan.ops.iter_mut().enumerate() {
            op.id = place as u64 + 1;
        }
        plan
    }

    /// Reads everywhere while leadership passes from one to another: whoever answers too soon is
    /// caught by them.
    fn draw_bursts(&mut self, scenario: &Scenario, dice: &mut Dice) {
        let transfers = self.faults.iter().filter(|planned| matches!(planned.fault, Fault::Transfer { .. }));
        for begin in transfers.map(|planned| planned.at_ms) {
            for client in 0..scenario.clients as u32 {
                for _ in 0..dice.between(0, BURST_READS_MAX) {
                    let at_ms = begin + dice.between(0, BURST_MS);
                    let member = Some(dice.between(1, scenario.members as u64) as usize);
                    let span = Span { key: key(scenario, dice), end: String::new() };
                    let ask = Ask::Range(Read { span, ..Read::default() });
                    if at_ms < self.head.heal_ms {
                        self.ops.push(Planned { at_ms, id: 0, client, member, ask });
                    }
                }
            }
        }
    }
}

fn key(scenario: &Scenario, dice: &mut Dice) -> String {
    // The first keys are the hot ones.
    let cold = dice.below(scenario.keys);
    format!("k{:02}", if dice.chance(0.5) { cold } else { dice.below(cold + 1) })
}

fn name(kind: &FaultKind) -> String {
    serde_json::to_value(kind).ok().and_then(|value| value.as_str().map(str::to_owned)).expect("a name")
}

/// Puts and reads are always on, so that a seed has something to say.
fn draw_mix(scenario: &Scenario, swarm: &mut Dice) -> Vec<(Kind, u32)> {
    let mut mix = Vec::new();
    for (kind, weight) in &scenario.mix {
        let off = swarm.chance(scenario.swarm_off * 0.6);
        let stays = matches!(kind, Kind::Put | Kind::Get);
        // And the weights themselves vary.
        let weight = if off && !stays { 0 } else { weight * swarm.between(2, 6) as u32 };
        mix.push((*kind, weight));
    }
    if mix.iter().all(|(_, weight)| *weight == 0) {
        mix = scenario.mix.iter().map(|(kind, weight)| (*kind, *weight)).collect();
    }
    mix
}

fn draw_sizes(scenario: &Scenario, dice: &mut Dice) -> Drawn {
    let sizes = &scenario.sizes;
    let mut draw = |[low, high]: [u64; 2]| dice.between(low, high);
    let heartbeat_ms = draw(sizes.heartbeat_ms);
    let latency_low = draw(sizes.latency_low_us);
    Drawn {
        heartbeat_ms,
        election_ms: draw(sizes.election_ms).max(5 * heartbeat_ms),
        snapshot_count: draw(sizes.snapshot_count),
        catchup_entries: draw(sizes.catchup_entries),
        page_bytes: sizes.page_bytes,
        log_segment_bytes: round(draw(sizes.log_segment_bytes), sizes.page_bytes),
        log_cache_bytes: draw(sizes.log_cache_bytes),
        store_segment_bytes: round(draw(sizes.store_segment_bytes), sizes.page_bytes),
        store_cache_bytes: draw(sizes.store_cache_bytes),
        commit_bytes: draw(sizes.commit_bytes),
        commit_ms: draw(sizes.commit_ms),
        index_segment_bytes: round(draw(sizes.index_segment_bytes), sizes.page_bytes),
        clean_ms: draw(sizes.clean_ms),
        scrub_ms: sizes.scrub_ms.map_or(0, &mut draw),
        quota_bytes: sizes.quota_bytes.map_or(0, &mut draw),
        retain: match (draw([0, 2]), sizes.retain_revisions, sizes.retain_ms) {
            (0, Some(range), _) => Retain::Revisions(draw(range)),
            (1, _, Some(range)) => Retain::Period(draw(range)),
            _ => Retain::Everything,
        },
        compare_ms: match (draw([0, 3]), sizes.compare_ms) {
            (1.., Some(range)) => draw(range),
            _ => 0,
        },
        latency_us: [latency_low, latency_low + draw(sizes.latency_spread_us)],
        drift_ppm: (0..scenario.members).map(|_| draw([0, 400]) as i64 - 200).collect(),
    }
}

fn round(bytes: u64, page: u64) -> u64 {
    bytes.div_ceil(page) * page
}

struct FaultDraw<'a> {
    scenario: &'a Scenario,
    plan: &'a mut Plan,
    dice: &'a mut Dice,
}

impl FaultDraw<'_> {
    fn kind(mut self, kind: FaultKind, pace: &Pace) {
        let end = self.plan.head.heal_ms;
        // The first comes as if one had ended before the calm did.
        let mut at = self.scenario.calm_seconds * 1000 + self.dice.between(0, pace.gap_ms[1]);
        let mut struck = 0;
        while at < end {
            let hold = self.dice.between(pace.hold_ms[0], pace.hold_ms[1]);
            let fault = match kind {
                FaultKind::Rot | FaultKind::Misdirect => {
                    // Data is damaged on a minority at most, always the same members.
                    if struck >= (self.scenario.members - 1) / 2 {
                        return;
                    }
                    struck += 1;
                    match kind {
                        FaultKind::Rot => Fault::Rot { member: struck },
                        _ => Fault::Misdirect { member: struck },
                    }
                }
                FaultKind::Decay => {
                    // The same member again: what rotted first may have been cleaned away unseen.
                    if struck >= DECAYS_MAX {
                        return;
                    }
                    struck += 1;
                    let how = *self.dice.pick(&[Decay::Bit, Decay::Bit, Decay::Sector, Decay::Stray]);
                    Fault::Decay { member: 1, how }
                }
                _ => self.draw(kind, hold),
            };
            self.plan.faults.push(PlannedFault { at_ms: at, fault });
            at += hold + self.dice.between(pace.gap_ms[0], pace.gap_ms[1]).max(1);
        }
    }

    fn whom(&mut self) -> Whom {
        let member = self.dice.between(1, self.scenario.members as u64) as usize;
        match self.dice.below(4) {
            0 | 1 => Whom::Leader,
            2 => Whom::Follower(member),
            _ => Whom::Member(member),
        }
    }

    fn draw(&mut self, kind: FaultKind, hold_ms: u64) -> Fault {
        let whom = self.whom();
        match kind {
            FaultKind::Kill => Fault::Kill { whom, hold_ms },
            FaultKind::PowerLoss => Fault::PowerLoss { whom, hold_ms },
            FaultKind::Blackout => Fault::Blackout { hold_ms },
            FaultKind::KillAtDisk => {
                let operation = self.dice.between(1, 60);
                Fault::KillAtDisk { whom, operation, power: self.dice.chance(0.5), hold_ms }
            }
            FaultKind::Pause => Fault::Pause { whom, hold_ms },
            FaultKind::PauseMany => {
                let spared = self.dice.chance(0.6).then_some(whom).into_iter().collect();
                Fault::PauseAllBut { whom: spared, hold_ms }
            }
            FaultKind::Partition | FaultKind::OneWay => self.partition(kind, whom, hold_ms),
            FaultKind::Swizzle => {
                let mut off: Vec<usize> = (1..=self.scenario.members).collect();
                self.dice.shuffle(&mut off);
                off.truncate(self.dice.between(1, off.len() as u64) as usize);
                let mut on = off.clone();
                self.dice.shuffle(&mut on);
                Fault::Swizzle { off, on, step_ms: self.dice.between(20, 800), hold_ms }
            }
            FaultKind::Latency => {
                let low_us = self.dice.between(500, 30_000);
                Fault::Latency { low_us, high_us: low_us + self.dice.between(1_000, 200_000), hold_ms }
            }
            FaultKind::Loss => Fault::Loss { percent: self.dice.between(1, 20), hold_ms },
            FaultKind::ClockJump => Fault::ClockJump { whom, by_ms: self.dice.between(5, 20_000) },
            FaultKind::ClockDrift => {
                Fault::ClockDrift { whom, ppm: self.dice.between(0, 100_000) as i64 - 50_000 }
            }
            FaultKind::WallJump => {
                Fault::WallJump { whom, by_ms: self.dice.between(0, 20_000_000_000) as i64 - 10_000_000_000 }
            }
            FaultKind::SyncError => Fault::SyncError { whom, percent: self.dice.between(5, 100), hold_ms },
            FaultKind::NoSpace => {
                // Often nothing at all is left; else it shrinks and grows.
                let left = match self.dice.chance(0.4) {
                    true => vec![0],
                    false => {
                        (0..self.dice.between(2, 6)).map(|_| self.dice.between(0, LEFT_BYTES_MAX)).collect()
                    }
                };
                Fault::NoSpace { whom, left, hold_ms }
            }
            FaultKind::SlowReads => Fault::SlowReads { whom, factor: self.dice.between(3, 300), hold_ms },
            FaultKind::SpoilIndex => Fault::SpoilIndex { whom, gone: self.dice.chance(0.5) },
            FaultKind::Defragment => Fault::Defragment { whom },
            FaultKind::Relieve => Fault::Relieve { wipe: self.dice.chance(0.6) },
            FaultKind::SlowDisk => Fault::SlowDisk { whom, factor: self.dice.between(3, 100), hold_ms },
            FaultKind::LeaderLoss => match self.dice.below(4) {
                0 => Fault::PowerLoss { whom: Whom::Leader, hold_ms },
                1 => Fault::Pause { whom: Whom::Leader, hold_ms },
                2 => {
                    let (whom, side) = (Some(Whom::Leader), Vec::new());
                    Fault::Partition { side, whom, outward: true, inward: true, hold_ms }
                }
                _ => Fault::Kill { whom: Whom::Leader, hold_ms },
            },
            FaultKind::Transfer => {
                let nth = self.dice.between(1, self.scenario.members as u64) as usize;
                // Now and then it may be the leader itself, which is fine (X8).
                let to = if self.dice.chance(0.9) { Whom::Follower(nth) } else { Whom::Member(nth) };
                Fault::Transfer { to }
            }
            FaultKind::Rot | FaultKind::Misdirect | FaultKind::Decay => unreachable!("drawn by the caller"),
        }
    }

    fn partition(&mut self, kind: FaultKind, whom: Whom, hold_ms: u64) -> Fault {
        let nodes = self.scenario.members + self.scenario.clients;
        let mut side: Vec<usize> = (1..=nodes).filter(|_| self.dice.chance(0.5)).collect();
        // Half of them part one member, wherever it is then, from the other members only.
        let whom = self.dice.chance(0.5).then_some(whom);
        if whom.is_some() {
            side.clear();
        }
        let (outward, inward) = match kind {
            FaultKind::Partition => (true, true),
            _ => {
                let outward = self.dice.chance(0.5);
                (outward, !outward)
            }
        };
        Fault::Partition { side, whom, outward, inward, hold_ms }
    }
}

struct OpDraw<'a> {
    scenario: &'a Scenario,
    mix: &'a [(Kind, u32)],
    client: u32,
    dice: Dice,
    count: u64,
}

impl OpDraw<'_> {
    fn all(mut self, ops: &mut Vec<Planned>) {
        let mean_us = (1e6 / self.scenario.rate) as u64;
        let end_us = self.scenario.seconds * 1_000_000;
        // The first second belongs to the first election.
        let mut at_us = 1_000_000 + self.dice.below(mean_us.max(1));
        let home = 1 + self.client as usize % self.scenario.members;
        while at_us < end_us {
            let weights: Vec<u32> = self.mix.iter().map(|(_, weight)| *weight).collect();
            let kind = self.mix[self.dice.weighted(&weights).expect("a mix has a weight")].0;
            let fixed = self.dice.chance(self.scenario.fixed_member_share);
            let member = fixed.then_some(home);
            for ask in self.kind(kind) {
                ops.push(Planned { at_ms: at_us / 1000, id: 0, client: self.client, member, ask });
            }
            // Bursts and lulls with the same mean.
            let pause = if self.dice.chance(0.5) { mean_us / 4 } else { mean_us * 7 / 4 };
            at_us += self.dice.between(pause / 2, pause * 3 / 2).max(1000);
        }
    }

    fn key(&mut self) -> String {
        key(self.scenario, &mut self.dice)
    }

    fn value(&mut self) -> String {
        self.count += 1;
        let mut value = format!("{}-{}", self.client, self.count);
        let big = self.scenario.big_values.as_ref().filter(|big| self.dice.chance(big.share));
        let [low, high] = big.map_or(self.scenario.value_bytes, |big| big.bytes);
        let padding = self.dice.between(low, high) as usize;
        if padding > 0 {
            value.push('-');
        }
        let length = value.len() + padding;
        if big.is_some() {
            // No two sectors of it are alike: one that lands in another's place is seen.
            for at in 0..padding.div_ceil(8) {
                value.push_str(&format!("{at:08}"));
            }
            value.truncate(length);
        } else {
            value.extend(std::iter::repeat_n('x', padding));
        }
        value
    }

    fn span(&mut self) -> Span {
        match self.dice.below(6) {
            0 => Span { key: NUL.into(), end: NUL.into() },
            1 => Span { key: self.key(), end: NUL.into() },
            2 => Span { key: "k".into(), end: "l".into() },
            3 => Span { key: self.key(), end: String::new() },
            _ => {
                let mut ends = [self.key(), self.key()];
                ends.sort();
                let [key, end] = ends;
                Span { end: format!("{end}x"), key }
            }
        }
    }

    fn back(&mut self) -> At {
        At::Back(match self.dice.below(4) {
            0 => 0,
            1 => self.dice.between(1, 5) as i64,
            2 => self.dice.between(1, 60) as i64,
            _ => self.dice.between(1, 600) as i64,
        })
    }

    fn store(&mut self) -> Store {
        Store {
            key: self.key(),
            value: self.value(),
            prev_kv: self.dice.chance(0.3),
            ignore_value: false,
            lease: 0,
        }
    }

    fn get(&mut self, serializable: bool) -> Read {
        Read { span: Span { key: self.key(), end: String::new() }, serializable, ..Read::default() }
    }

    fn range(&mut self) -> Read {
        let mut read = Read { span: self.span(), serializable: self.dice.chance(0.2), ..Read::default() };
        if self.dice.chance(0.4) {
            read.limit = self.dice.between(1, 6) as i64;
        }
        if self.dice.chance(0.3) {
            read.sort_order = self.dice.between(0, 2) as i32;
            read.sort_target = self.dice.between(0, 4) as i32;
        }
        match self.dice.below(10) {
            0 => read.keys_only = true,
            1 => read.count_only = true,
            2 => read.min_mod = Some(self.back()),
            3 => read.max_create = Some(self.back()),
            _ => {}
        }
        read
    }

    fn erase(&mut self, span: Span) -> Erase {
        Erase { span, prev_kv: self.dice.chance(0.5) }
    }

    fn test(&mut self) -> Test {
        let mut span = Span { key: self.key(), end: String::new() };
        let mut result = 0;
        let against = match self.dice.below(6) {
            0 | 1 => Against::SeenMod,
            2 => Against::SeenValue,
            3 => {
                result = self.dice.between(0, 3) as i32;
                Against::Version(self.dice.between(0, 4) as i64)
            }
            4 => {
                result = self.dice.between(1, 2) as i32;
                Against::Create(self.back())
            }
            _ => {
                result = self.dice.between(1, 2) as i32;
                if self.dice.chance(0.3) {
                    span = self.span();
                }
                Against::Mod(self.back())
            }
        };
        Test { span, result, against }
    }

    /// Operations of one branch. No key is written twice in a txn, or it would be refused: each
    /// write takes a key of its own slice.
    fn branch(&mut self, depth: u32, slice: &mut u64) -> Vec<Ask> {
        let count = self.dice.between(1, 3);
        (0..count)
            .map(|_| match self.dice.below(8) {
                0..3 => {
                    *slice += 1;
                    let key = format!("k{:02}", (*slice + self.dice.below(1)) % self.scenario.keys.max(1));
                    Ask::Put(Store { key, ..self.store() })
                }
                3 | 4 => Ask::Range(self.get(false)),
                5 => Ask::Range(self.range()),
                6 if depth == 0 => {
                    let (tests, then) = (vec![self.test()], self.branch(1, slice));
                    Ask::Txn(Branches { tests, then, otherwise: self.branch(1, slice) })
                }
                _ => {
                    *slice += 1;
                    let span = Span { key: format!("t{:02}", *slice % 10), end: String::new() };
                    Ask::Delete(self.erase(span))
                }
            })
            .collect()
    }

    fn kind(&mut self, kind: Kind) -> Vec<Ask> {
        let ask = match kind {
            Kind::Put => Ask::Put(self.store()),
            Kind::Get => Ask::Range(self.get(false)),
            Kind::GetLocal => Ask::Range(self.get(true)),
            Kind::Range => Ask::Range(self.range()),
            Kind::RangeBack => Ask::Range(Read { at: Some(self.back()), ..self.range() }),
            Kind::Delete => {
                let span = Span { key: self.key(), end: String::new() };
                Ask::Delete(self.erase(span))
            }
            Kind::DeleteRange => {
                let span = self.span();
                Ask::Delete(self.erase(span))
            }
            Kind::Swap => self.swap(),
            Kind::Txn => {
                let tests = (0..self.dice.between(0, 2)).map(|_| self.test()).collect();
                let mut slice = self.dice.below(self.scenario.keys);
                let then = self.branch(0, &mut slice);
                Ask::Txn(Branches { tests, then, otherwise: self.branch(0, &mut slice) })
            }
            Kind::TxnBack => {
                let at = if self.dice.chance(0.5) { At::Exactly(1) } else { self.back() };
                let read = Read { at: Some(at), ..self.get(false) };
                let mut then = vec![Ask::Put(self.store()), Ask::Range(read)];
                self.dice.shuffle(&mut then);
                Ask::Txn(Branches { then, ..Branches::default() })
            }
            Kind::Compact => Ask::Compact { at: self.back(), physical: self.dice.chance(0.3) },
            Kind::Wipe => {
                let span = Span { key: NUL.into(), end: NUL.into() };
                let erase = Ask::Delete(self.erase(span));
                return vec![erase, Ask::Compact { at: At::Back(0), physical: self.dice.chance(0.3) }];
            }
            Kind::Bad => self.bad(),
        };
        vec![ask]
    }

    /// Swaps what the client saw last; on failure it looks.
    fn swap(&mut self) -> Ask {
        let store = self.store();
        let span = Span { key: store.key.clone(), end: String::new() };
        let against = if self.dice.chance(0.7) { Against::SeenMod } else { Against::SeenValue };
        let look = Ask::Range(Read { span: span.clone(), ..Read::default() });
        Ask::Txn(Branches {
            tests: vec![Test { span, result: 0, against }],
            then: vec![Ask::Put(store)],
            otherwise: vec![look],
        })
    }

    fn bad(&mut self) -> Ask {
        let store = self.store();
        match self.dice.below(6) {
            0 => Ask::Put(Store { key: String::new(), ..store }),
            1 => Ask::Put(Store { lease: 12_345, ..store }),
            2 => Ask::Put(Store { ignore_value: true, value: String::new(), ..store }),
            3 => Ask::Txn(Branches {
                then: vec![Ask::Put(store.clone()), Ask::Put(store)],
                ..Branches::default()
            }),
            4 => Ask::Range(Read { at: Some(At::Back(-1_000_000)), ..self.get(false) }),
            _ => Ask::Compact { at: At::Back(-1_000_000), physical: false },
        }
    }
}
