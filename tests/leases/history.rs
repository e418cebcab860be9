//! What workers saw, and whether it is as promised.

use std::collections::BTreeMap;

use super::worker::TTL;

/// One thing that one worker saw.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) worker: usize,
    pub(crate) what: String,
    pub(crate) fence: u64,
    pub(crate) at: u64,
    pub(crate) more: u64,
}

/// A time in which something was done to workers or servers.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) what: &'static str,
    /// The worker that it was done to, if it was one.
    pub(crate) worker: Option<usize>,
    pub(crate) from: u64,
    pub(crate) until: u64,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) events: Vec<Event>,
    pub(crate) faults: Vec<Fault>,
    /// The fences under which the resource took writes, in its order.
    pub(crate) register: Vec<u64>,
}

/// A time for which a worker knew that it held.
struct Held {
    worker: usize,
    fence: u64,
    from: u64,
    until: u64,
    is_released: bool,
}

impl History {
    pub(crate) fn assert_right(&self) {
        let wrong = self.wrong();
        let count = |what: &str| self.events.iter().filter(|event| event.what == what).count();
        println!(
            "{} acquired, {} steps, {} lost, {} writes of which {} were accepted; {} faults: {:?}; wrong: {}",
            count("acquired"),
            count("step"),
            count("lost"),
            count("write"),
            self.register.len(),
            self.faults.len(),
            self.faults.iter().fold(BTreeMap::<_, u32>::new(), |mut all, fault| {
                *all.entry(fault.what).or_default() += 1;
                all
            }),
            wrong.len(),
        );
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(count("acquired") > 5, "nothing was tried: {} acquired", count("acquired"));
    }

    /// Returns all that is not as promised.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let held = self.held();
        let mut wrong = Vec::new();
        // C1: one holder at a time, unless the server has forgotten it: then until the next renewal has told.
        for (i, one) in held.iter().enumerate() {
            for other in held[i + 1..].iter().take_while(|other| other.from < one.until) {
                let overlap = other.from..one.until.min(other.until);
                // One that is stopped meanwhile is told later, but not after its own deadline.
                let paused = self.faults.iter().any(|fault| {
                    [Some(one.worker), Some(other.worker)].contains(&fault.worker) && fault.until > one.from
                });
                let longest = if paused { ns(TTL) } else { TOLD };
                let forgotten = self.faults.iter().any(|fault| {
                    fault.what == "flush" && fault.from < overlap.end && overlap.end < fault.until + longest
                });
                if !forgotten && overlap.end > overlap.start {
                    wrong.push(format!(
                        "C1: {} and {} held together for {} us, under {} and {}",
                        one.worker,
                        other.worker,
                        (overlap.end - overlap.start) / 1_000,
                        one.fence,
                        other.fence
                    ));
                }
            }
        }
        // C2: fences grow in the order of the acquires; two that are told within a moment may be told in either order.
        let mut newest = (0, 0);
        for one in &held {
            if one.fence <= newest.0 && one.from > newest.1 {
                wrong.push(format!("C2: fence {} came after {}", one.fence, newest.0));
            }
            newest = newest.max((one.fence, one.from));
        }
        // C3: what the resource took came in the order of the fences.
        if !self.register.is_sorted() {
            wrong.push("C3: the register went back".to_owned());
        }
        // C4: no step of the body begins after the deadline.
        for step in self.events.iter().filter(|event| event.what == "step" && event.more <= event.at) {
            wrong.push(format!("C4: {} made a step under {} without a lease", step.worker, step.fence));
        }
        // C5: who lost knows it in time, by what a bare timer shows, and after a pause at once.
        for lost in self.events.iter().filter(|event| event.what == "lost") {
            let paused = self.faults.iter().filter(|fault| fault.worker == Some(lost.worker) && fault.from < lost.at);
            let awake = paused.map(|fault| fault.until).max().unwrap_or_default();
            let due = lost.more.max(awake) + LATE;
            if lost.at > due {
                wrong.push(format!("C5: {} was told {} us late", lost.worker, (lost.at - due + LATE) / 1_000));
            }
        }
        // C6: the next one holds when the last one has released, or its lease has ended.
        for pair in held.windows(2) {
            let (end, next) = (pair[0].until, pair[1].from);
            let longest = if pair[0].is_released { SOON } else { ns(TTL) + SOON };
            // While the server or the network is not there, or the one whose turn it is, nobody can.
            let hindered = self.faults.iter().any(|fault| fault.from < next && fault.until + ns(TTL) + SOON > end);
            if next > end + longest && !hindered {
                wrong.push(format!("C6: nobody held for {} ms after {}", (next - end) / 1_000_000, pair[0].fence));
            }
        }
        wrong
    }

    /// Returns who held when, in the order of the acquires.
    fn held(&self) -> Vec<Held> {
        let mut all: Vec<Held> = Vec::new();
        let mut open: BTreeMap<usize, usize> = BTreeMap::new();
        for event in &self.events {
            if event.what == "acquired" {
                open.insert(event.worker, all.len());
                let (worker, fence, from) = (event.worker, event.fence, event.at);
                all.push(Held { worker, fence, from, until: from, is_released: false });
            } else if let Some(held) = open.get(&event.worker).and_then(|at| all.get_mut(*at)) {
                match event.what.as_str() {
                    "step" | "write" | "releases" if event.fence == held.fence => {
                        held.until = held.until.max(event.at);
                        held.is_released = event.what == "releases";
                    }
                    _ => {}
                }
            }
        }
        all.sort_by_key(|held| held.from);
        all
    }
}

fn ns(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("short")
}

/// Five milliseconds as promised, and what a debug build on a busy machine takes to say it.
const LATE: u64 = if cfg!(debug_assertions) { 40_000_000 } else { 5_000_000 };

/// A renewal is due each third of the time, a tenth later at most; the rest is what a busy machine takes.
const TOLD: u64 = 280_000_000;

/// What a healthy hand-over takes at most here, other processes and all.
const SOON: u64 = 500_000_000;
