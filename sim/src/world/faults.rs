//! What each fault does to the world, and what undoes it.

use super::{MS, World};
use crate::clock::ClockSim;
use crate::cluster::{INDEX_DIR, STORE_DIR, State};
use crate::disk::{DiskSim, Faults};
use crate::journal::note;
use crate::plan::{Decay, Fault, Whom};
use crate::time::now_ns;
use std::{path::Path, time::Duration};

/// A checkpoint that is spoilt has so many damaged places.
const SPOILT_PLACES: usize = 8;
/// How long a member is down whose checkpoint is spoilt.
const SPOILT_DOWN_MS: u64 = 300;

/// An item of the agenda.
#[derive(Clone, Debug)]
pub enum Act {
    Strike(Fault),
    Boot(usize),
    Resume(usize),
    Cut(Vec<(usize, usize)>),
    Mend(Vec<(usize, usize)>),
    /// Latency of the plan's sizes again.
    Latency,
    Loss,
    /// One kind of disk trouble ends.
    Repair(usize, Trouble),
    /// So many more bytes fit from now on.
    Left(usize, u64),
}

#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    Sync,
    Space,
    Slow,
    SlowReads,
}

impl World {
    pub(super) fn act(&mut self, act: Act) {
        match act {
            Act::Strike(fault) => self.strike(fault),
            Act::Boot(number) => self.cluster.boot(number),
            Act::Resume(number) => self.cluster.resume(number),
            Act::Cut(links) => self.cut(&links),
            Act::Mend(links) => links.iter().for_each(|(from, to)| self.cluster.cables.mend(*from, *to)),
            Act::Latency => self.plan_latency(),
            Act::Loss => self.cluster.cables.set_loss(0.0),
            Act::Repair(number, trouble) => self.repair(number, trouble),
            Act::Left(number, bytes) => self.leave(number, bytes),
        }
    }

    /// Members that the words stand for now.
    pub(super) fn resolve(&mut self, whom: &Whom) -> usize {
        let members = self.cluster.len();
        let leader = self.leader();
        match whom {
            Whom::Member(number) => (number - 1) % members + 1,
            Whom::Leader => leader.unwrap_or(1),
            Whom::Follower(nth) => {
                let others: Vec<usize> =
                    self.cluster.numbers().filter(|number| Some(*number) != leader).collect();
                others.get(nth % others.len().max(1)).copied().unwrap_or(1)
            }
        }
    }

    fn cut(&mut self, links: &[(usize, usize)]) {
        links.iter().for_each(|(from, to)| self.cluster.cables.cut(*from, *to));
    }

    fn after(&mut self, hold_ms: u64, act: Act) {
        self.plan_at(now_ns() + hold_ms * MS, act);
    }

    fn plan_latency(&mut self) {
        let [low, high] = self.plan.head.sizes.latency_us.map(Duration::from_micros);
        self.cluster.cables.set_latency(low, high);
    }

    fn kill(&mut self, number: usize, power: bool, hold_ms: u64) {
        if self.cluster.kill(number, power) {
            self.after(hold_ms, Act::Boot(number));
        }
    }

    fn strike(&mut self, fault: Fault) {
        note(|| format!("fault {fault:?}"));
        match fault {
            Fault::Kill { whom, hold_ms } => {
                let number = self.resolve(&whom);
                self.kill(number, false, hold_ms);
            }
            Fault::PowerLoss { whom, hold_ms } => {
                let number = self.resolve(&whom);
                // A machine may lose power after its process died.
                self.cluster.cut_power_while_down(number);
                self.kill(number, true, hold_ms);
            }
            Fault::Blackout { hold_ms } => {
                for number in self.cluster.numbers() {
                    self.cluster.cut_power_while_down(number);
                    // They come back one after the other.
                    let later = self.dice.between(0, 500);
                    self.kill(number, true, hold_ms + later);
                }
            }
            Fault::KillAtDisk { whom, operation, power, hold_ms } => {
                let number = self.resolve(&whom);
                if self.cluster.state(number) == State::Up {
                    DiskSim::get().freeze_after(self.cluster.node(number), operation);
                    self.doomed.insert(number, (power, hold_ms));
                }
            }
            Fault::Pause { whom, hold_ms } => {
                let number = self.resolve(&whom);
                if self.cluster.pause(number) {
                    self.after(hold_ms, Act::Resume(number));
                }
            }
            Fault::PauseAllBut { whom, hold_ms } => {
                let spared: Vec<usize> = whom.iter().map(|whom| self.resolve(whom)).collect();
                for number in self.cluster.numbers().filter(|number| !spared.contains(number)) {
                    if self.cluster.pause(number) {
                        self.after(hold_ms, Act::Resume(number));
                    }
                }
            }
            Fault::Partition { side, whom, outward, inward, hold_ms } => {
                let links = self.links(&side, whom.as_ref(), outward, inward);
                self.cut(&links);
                self.after(hold_ms, Act::Mend(links));
            }
            Fault::Swizzle { off, on, step_ms, hold_ms } => self.swizzle(&off, &on, step_ms, hold_ms),
            Fault::Latency { low_us, high_us, hold_ms } => {
                let [low, high] = [low_us, high_us].map(Duration::from_micros);
                self.cluster.cables.set_latency(low, high);
                self.after(hold_ms, Act::Latency);
            }
            Fault::Loss { percent, hold_ms } => {
                self.cluster.cables.set_loss(percent as f64 / 100.0);
                self.after(hold_ms, Act::Loss);
            }
            Fault::ClockJump { whom, by_ms } => {
                let number = self.resolve(&whom);
                ClockSim::get().jump(self.cluster.node(number), Duration::from_millis(by_ms));
            }
            Fault::ClockDrift { whom, ppm } => {
                let number = self.resolve(&whom);
                ClockSim::get().set_drift(self.cluster.node(number), ppm);
            }
            Fault::WallJump { whom, by_ms } => {
                let number = self.resolve(&whom);
                ClockSim::get().jump_wall(self.cluster.node(number), by_ms.saturating_mul(1_000_000));
            }
            Fault::SyncError { whom, percent, hold_ms } => {
                let number = self.resolve(&whom);
                let trouble = move |faults: &mut Faults| faults.sync_error = percent as f64 / 100.0;
                self.trouble(number, trouble, Trouble::Sync, hold_ms);
            }
            Fault::NoSpace { whom, left, hold_ms } => {
                let number = self.resolve(&whom);
                let step_ms = hold_ms / left.len().max(1) as u64;
                for (step, bytes) in left.iter().enumerate() {
                    self.after(step as u64 * step_ms, Act::Left(number, *bytes));
                }
                self.after(hold_ms, Act::Repair(number, Trouble::Space));
            }
            Fault::SlowReads { whom, factor, hold_ms } => {
                let number = self.resolve(&whom);
                DiskSim::get().set_faults(self.cluster.node(number), |faults| faults.slow_reads = factor);
                self.after(hold_ms, Act::Repair(number, Trouble::SlowReads));
            }
            Fault::Decay { member, how } => {
                let number = (member - 1) % self.cluster.len() + 1;
                let rot = DiskSim::get().rot(self.cluster.node(number), Path::new(STORE_DIR), how);
                if let Some(place) = rot {
                    note(|| format!("n{number}: {place} rots"));
                    quorate::reached!("a store rotted while its member ran");
                    self.cluster.damage(number);
                    self.rotten_since.insert(number, now_ns());
                }
            }
            Fault::SpoilIndex { whom, gone } => {
                let number = self.resolve(&whom);
                if self.cluster.state(number) == State::Up {
                    self.kill(number, false, SPOILT_DOWN_MS);
                    self.spoil_index(number, gone);
                }
            }
            Fault::Defragment { whom } => {
                let number = self.resolve(&whom);
                self.ask_to_defragment(number);
            }
            Fault::Relieve { wipe } => self.ask_for_relief(wipe),
            Fault::SlowDisk { whom, factor, hold_ms } => {
                let number = self.resolve(&whom);
                DiskSim::get().set_faults(self.cluster.node(number), |faults| faults.slow = factor);
                self.after(hold_ms, Act::Repair(number, Trouble::Slow));
            }
            Fault::Transfer { to } => {
                self.ask_to_hand_over(&to);
            }
            Fault::Rot { member } => {
                let number = (member - 1) % self.cluster.len() + 1;
                let rot = DiskSim::get().rot(self.cluster.node(number), Path::new("/data"), Decay::Bit);
                if let Some(place) = rot {
                    note(|| format!("n{number}: {place} rots"));
                    self.cluster.damage(number);
                    // A restart makes it look at what rotted.
                    self.kill(number, false, 100);
                }
            }
            Fault::Misdirect { member } => {
                let number = (member - 1) % self.cluster.len() + 1;
                DiskSim::get().set_faults(self.cluster.node(number), |faults| faults.misdirect = true);
                self.cluster.damage(number);
            }
        }
    }

    /// Disk trouble that a member may stop over.
    fn trouble(&mut self, number: usize, change: impl FnOnce(&mut Faults), kind: Trouble, hold_ms: u64) {
        DiskSim::get().set_faults(self.cluster.node(number), change);
        self.cluster.excuse(number);
        self.after(hold_ms, Act::Repair(number, kind));
    }

    fn repair(&mut self, number: usize, trouble: Trouble) {
        DiskSim::get().set_faults(self.cluster.node(number), |faults| match trouble {
            Trouble::Sync => faults.sync_error = 0.0,
            Trouble::Space => faults.capacity = None,
            Trouble::Slow => faults.slow = 1,
            Trouble::SlowReads => faults.slow_reads = 1,
        });
        if matches!(trouble, Trouble::Space) {
            self.no_longer_full(number);
        }
    }

    /// So many more bytes fit.
    fn leave(&mut self, number: usize, bytes: u64) {
        let (disks, node) = (DiskSim::get(), self.cluster.node(number));
        let fits = disks.used(node) + bytes;
        note(|| format!("n{number}: {bytes} bytes are left"));
        disks.set_faults(node, |faults| faults.capacity = Some(fits));
        self.full_since.entry(number).or_insert_with(now_ns);
    }

    fn no_longer_full(&mut self, number: usize) {
        if let Some(since) = self.full_since.remove(&number) {
            self.full_ns.entry(number).or_default().push((since, now_ns()));
        }
    }

    /// A checkpoint may be damaged in any way: it costs time, never data.
    fn spoil_index(&mut self, number: usize, gone: bool) {
        let (disks, node) = (DiskSim::get(), self.cluster.node(number));
        if gone {
            disks.forget(node, Path::new(INDEX_DIR));
            quorate::reached!("a checkpoint of the index was gone");
            return;
        }
        for _ in 0..SPOILT_PLACES {
            if let Some(place) = disks.rot(node, Path::new(INDEX_DIR), Decay::Sector) {
                note(|| format!("n{number}: {place} rots"));
                quorate::reached!("a checkpoint of the index rotted");
            }
        }
    }

    /// Links between a side and the rest, by place among the cables.
    fn links(
        &mut self,
        side: &[usize],
        whom: Option<&Whom>,
        outward: bool,
        inward: bool,
    ) -> Vec<(usize, usize)> {
        let members = self.cluster.len();
        let nodes = members + self.plan.head.clients;
        let (inside, outside): (Vec<usize>, Vec<usize>) = match whom {
            // One member apart from the others; clients reach both sides.
            Some(whom) => {
                let one = self.resolve(whom);
                (
                    (1..=members).filter(|node| *node == one).collect(),
                    (1..=members).filter(|node| *node != one).collect(),
                )
            }
            None => (1..=nodes).partition(|node| side.contains(node)),
        };
        let mut links = Vec::new();
        for (one, other) in
            inside.iter().flat_map(|one| outside.iter().map(move |other| (one - 1, other - 1)))
        {
            // Clients never speak to each other.
            if one >= members && other >= members {
                continue;
            }
            if outward {
                links.push((one, other));
            }
            if inward {
                links.push((other, one));
            }
        }
        links
    }

    fn swizzle(&mut self, off: &[usize], on: &[usize], step_ms: u64, hold_ms: u64) {
        let whole = |world: &mut World, member: usize| {
            let nodes = world.cluster.len() + world.plan.head.clients;
            let place = (member - 1) % world.cluster.len();
            let others = (0..nodes).filter(|other| *other != place);
            others.flat_map(|other| [(place, other), (other, place)]).collect::<Vec<_>>()
        };
        for (step, member) in off.iter().enumerate() {
            let links = whole(self, *member);
            self.after(step as u64 * step_ms, Act::Cut(links));
        }
        for (step, member) in on.iter().enumerate() {
            let links = whole(self, *member);
            self.after((off.len() + step) as u64 * step_ms + hold_ms, Act::Mend(links));
        }
    }

    /// From now on nothing is wrong, and everyone runs.
    pub(super) fn heal(&mut self) {
        self.see_to_exits();
        self.agenda.clear();
        self.doomed.clear();
        self.cluster.cables.mend_all();
        self.plan_latency();
        for number in self.cluster.numbers() {
            let id = self.cluster.node(number);
            let disks = DiskSim::get();
            disks.set_faults(id, |faults| *faults = Faults::default());
            if disks.is_frozen(id) {
                self.cluster.kill(number, false);
            }
            disks.cancel_freeze(id);
            self.no_longer_full(number);
            ClockSim::get().set_drift(id, 0);
            self.cluster.resume(number);
            self.cluster.boot(number);
        }
    }
}
