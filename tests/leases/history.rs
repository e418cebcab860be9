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
    /// What is left on the servers that does not end by itself.
    pub(crate) left: Vec<String>,
    /// When the workers were ended.
    pub(crate) end: u64,
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
        let count = |what| self.count(what);
        println!(
            "{} acquired, {} steps, {} lost, {} writes of which {} were accepted; nobody held for {} ms at most; \
             {} faults: {:?}; wrong: {}",
            count("acquired"),
            count("step"),
            count("lost"),
            count("write"),
            self.register.len(),
            self.free().iter().map(|(from, until, _)| until.saturating_sub(*from)).max().unwrap_or_default()
                / 1_000_000,
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

    pub(crate) fn count(&self, what: &str) -> usize {
        self.events.iter().filter(|event| event.what == what).count()
    }

    /// Returns all that is not as promised.
    pub(crate) fn wrong(&self) -> Vec<String> {
        let held = self.held();
        let mut wrong = Vec::new();
        // C1: one holder at a time, unless the server has forgotten it: then until the next renewal has told.
        for (i, one) in held.iter().enumerate() {
            for other in held[i + 1..].iter().take_while(|other| other.from < one.until) {
                let overlap = other.from..one.until.min(other.until);
                // One that is stopped meanwhile, or cannot ask, is told later, but not after its own deadline.
                let paused = self.faults.iter().any(|fault| {
                    let stopped =
                        fault.what == "stall" || [Some(one.worker), Some(other.worker)].contains(&fault.worker);
                    stopped && fault.from < overlap.end && fault.until > one.from
                });
                let forgotten = self.faults.iter().any(|fault| {
                    let longest = match fault.what {
                        "flush" | "ahead" | "flush and ahead" if !paused => TOLD,
                        "flush" | "ahead" | "flush and ahead" | "restart" | "failover" => ns(TTL),
                        "flush one of two" if !paused => TOLD,
                        "flush one of two" => ns(TTL),
                        _ => return false,
                    };
                    fault.from < overlap.end && overlap.end < fault.until + longest
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
        // C6: the next one holds when the last one has released, or its lease has ended; after a fault as if it had
        // begun then.
        for (from, next, is_released) in self.free() {
            let mut due = from + if is_released { SOON } else { ns(TTL) + SOON };
            for fault in self.faults.iter().filter(|fault| fault.until + ns(TTL) + SOON > from) {
                if fault.from < due {
                    due = due.max(fault.until + ns(TTL) + SOON);
                }
            }
            if next > due {
                wrong.push(format!("C6: nobody held for {} ms", (next - from) / 1_000_000));
            }
        }
        // C7: nothing is left but keys that end, and nobody listens.
        wrong.extend(self.left.iter().map(|left| format!("C7: {left} is left")));
        wrong
    }

    /// Returns from when until when nobody was known to hold, and whether the one before had released.
    fn free(&self) -> Vec<(u64, u64, bool)> {
        let mut free = Vec::new();
        let mut last: Option<(u64, bool)> = None;
        for one in self.held() {
            if let Some((end, is_released)) = last {
                free.push((end, one.from, is_released));
            }
            last = last.max(Some((one.until, one.is_released)));
        }
        free.extend(last.map(|(end, is_released)| (end, self.end, is_released)));
        free
    }

    /// Returns who held when, in the order of the acquires.
    fn held(&self) -> Vec<Held> {
        let mut all: Vec<Held> = Vec::new();
        let mut open: BTreeMap<usize, usize> = BTreeMap::new();
        for event in &self.events {
            if event.what == "acquired" {
                open.insert(event.worker, all.len());
                let (worker, fence, from) = (event.worker, event.fence, event.at);
                all.push(Held { worker, fence, from, until: event.more.max(from), is_released: false });
            } else if let Some(held) = open.get(&event.worker).and_then(|at| all.get_mut(*at)) {
                match event.what.as_str() {
                    // Until its deadline as it was then, unless it gives up before.
                    "step" if event.fence == held.fence => held.until = held.until.max(event.more),
                    "write" if event.fence == held.fence => held.until = held.until.max(event.at),
                    "releases" if event.fence == held.fence => (held.until, held.is_released) = (event.at, true),
                    "lost" if event.fence == held.fence => held.until = held.until.min(event.at),
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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Reads `worker what fence at-ms more-ms`, one a line.
    fn history(told: &str, register: &[u64]) -> History {
        let event = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            let worker = usize::try_from(number(0)).expect("few");
            Event { worker, what: words[1].to_owned(), fence: number(2), at: number(3) * MS, more: number(4) * MS }
        };
        let events: Vec<Event> = told.lines().filter(|line| !line.trim().is_empty()).map(event).collect();
        let end = events.last().map_or(0, |event| event.at);
        History { events, register: register.to_vec(), end, ..History::default() }
    }

    #[test]
    fn what_is_as_promised_is_not_found_wrong() {
        let told =
            "0 acquired 10 0 400\n0 step 10 100 500\n0 releases 10 200 0\n1 acquired 11 210 600\n1 lost 11 601 600";
        assert_eq!(history(told, &[10, 10, 11]).wrong(), Vec::<String>::new());
    }

    #[test]
    fn each_check_finds_what_it_is_for() {
        for (check, told, register) in [
            ("C1", "0 acquired 10 0 400\n1 acquired 11 350 750", &[][..]),
            ("C2", "0 acquired 10 0 400\n0 releases 10 20 0\n1 acquired 9 50 400", &[]),
            ("C3", "0 acquired 10 0 400", &[10, 11, 10]),
            ("C4", "0 acquired 10 0 400\n0 step 10 401 400", &[]),
            ("C5", "0 acquired 10 0 400\n0 lost 10 500 400", &[]),
            ("C6", "0 acquired 10 0 400\n0 releases 10 20 0\n1 acquired 11 600 900", &[]),
        ] {
            let wrong = history(told, register).wrong();
            assert!(wrong.len() == 1 && wrong[0].starts_with(check), "{check}: {wrong:?}");
        }
        let left = History { left: vec!["a key".to_owned()], ..History::default() };
        assert_eq!(left.wrong(), ["C7: a key is left"]);
    }

    /// One of three servers is emptied: that is no excuse unless it was one of only two that had granted.
    #[test]
    fn two_may_hold_for_a_while_only_if_what_is_forgotten_stood_on_two() {
        let told = "0 acquired 10 0 400\n1 acquired 11 350 750";
        for (what, is_excused) in [("flush one of two", true), ("flush one of three", false), ("restart one", false)] {
            let fault = Fault { what, worker: None, from: 300 * MS, until: 301 * MS };
            let wrong = History { faults: vec![fault], ..history(told, &[]) }.wrong();
            assert_eq!(wrong.is_empty(), is_excused, "{what}: {wrong:?}");
        }
    }
}
