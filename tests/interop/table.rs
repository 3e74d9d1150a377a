use std::collections::BTreeSet;
use std::fmt;

/// What became of one scenario with one peer.
pub(crate) struct Outcome {
    peer: String,
    scenario: String,
    word: String,
}

impl Outcome {
    /// `None` for a line that tells of no outcome.
    pub(crate) fn read(line: &str) -> Option<Self> {
        let mut fields = line.split('\t').map(str::to_owned);
        if fields.next()? != "interop" {
            return None;
        }
        Some(Self { peer: fields.next()?, scenario: fields.next()?, word: fields.next()? })
    }

    pub(crate) fn failed(&self) -> bool {
        self.word == "FAILED"
    }
}

/// The outcomes of one registrar, or of two side by side, by scenario and peer.
pub(crate) struct Table(Vec<Vec<Outcome>>);

impl Table {
    pub(crate) fn of(registrars: usize) -> Self {
        Self((0..registrars).map(|_| Vec::new()).collect())
    }

    pub(crate) fn add(&mut self, registrar: usize, outcome: Outcome) {
        self.0[registrar].push(outcome);
    }

    /// In the order in which they first came.
    fn peers(&self) -> Vec<&str> {
        let mut peers = Vec::new();
        for outcome in self.0.iter().flatten() {
            if !peers.contains(&outcome.peer.as_str()) {
                peers.push(&outcome.peer);
            }
        }
        peers
    }

    /// By the first peer that has them, and by the alphabet: many run side by side.
    fn scenarios(&self) -> Vec<&str> {
        let mut scenarios: Vec<&str> = Vec::new();
        for peer in self.peers() {
            let of_peer = self.0.iter().flatten().filter(|outcome| outcome.peer == peer);
            let names: BTreeSet<_> = of_peer.map(|outcome| outcome.scenario.as_str()).collect();
            let new: Vec<_> = names.into_iter().filter(|name| !scenarios.contains(name)).collect();
            scenarios.extend(new);
        }
        scenarios
    }

    fn cell(&self, scenario: &str, peer: &str) -> String {
        let word = |outcomes: &Vec<Outcome>| {
            let is_it = |it: &&Outcome| it.scenario == scenario && it.peer == peer;
            outcomes.iter().find(is_it).map_or("", |it| &it.word).to_owned()
        };
        let words: Vec<_> = self.0.iter().map(word).collect();
        match words.iter().all(String::is_empty) {
            true => String::new(),
            false => words.join(" / "),
        }
    }
}

/// As Markdown.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peers = self.peers();
        writeln!(f, "| scenario | {} |", peers.join(" | "))?;
        writeln!(f, "|---|{}", ":-:|".repeat(peers.len()))?;
        for scenario in self.scenarios() {
            let cells: Vec<_> = peers.iter().map(|peer| self.cell(scenario, peer)).collect();
            writeln!(f, "| {scenario} | {} |", cells.join(" | "))?;
        }
        Ok(())
    }
}
