//! Cases for tests of what holds in general: random, and the same in every run.

/// Marsaglia's xorshift64.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Of any number of bits.
    pub(crate) fn number(&mut self) -> u64 {
        self.next() >> self.below(64)
    }

    /// A text of any characters, and of those that mean something to a log more often.
    pub(crate) fn string(&mut self) -> String {
        let special: Vec<char> = "\"\\\n\n\r\t\0\x1b\x7f\u{85}\u{2028}<>&=] ".chars().collect();
        let length = self.below(20);
        let any = |end, random: &mut Self| char::from_u32(random.below(end) as u32);
        let character = |_| {
            let character = match self.below(4) {
                0 => Some(special[self.below(special.len())]),
                1 => any(0x80, self),
                2 => any(0x3000, self),
                _ => any(0x11_0000, self),
            };
            character.unwrap_or('x')
        };
        (0..length).map(character).collect()
    }
}
