//! Header blocks as the kubelet's gRPC library writes them.

use loona_hpack::encoder::encode_integer_into;

/// The entries of HPACK's static table (RFC 7541, appendix A) that matter here.
const STATIC: [(usize, &str, &str); 6] = [
    (1, ":authority", ""),
    (3, ":method", "POST"),
    (4, ":path", "/"),
    (6, ":scheme", "http"),
    (31, "content-type", ""),
    (58, "user-agent", ""),
];
const FIRST_DYNAMIC: usize = 62;

/// An encoder that puts every new field into the dynamic table, Huffman-coded where it can be.
/// grpc-go's does, so the second request names an authority that only the first has spelled out.
#[derive(Default)]
pub(super) struct Table(Vec<(String, String)>);

impl Table {
    /// Adds a field to a header block.
    pub(super) fn encode(&mut self, name: &str, value: &str, block: &mut Vec<u8>) {
        let dynamic = self.0.iter().rev().zip(FIRST_DYNAMIC..);
        let dynamic = dynamic.map(|((name, value), index)| (index, &**name, &**value));
        let entries: Vec<_> = STATIC.into_iter().chain(dynamic).collect();
        let is_same = |&&(_, n, v): &&(_, _, _)| (n, v) == (name, value);
        if let Some((index, ..)) = entries.iter().find(is_same) {
            integer(*index, 7, 0x80, block);
            return;
        }
        let of_name = entries.iter().find(|(_, n, _)| *n == name);
        let index = of_name.map_or(0, |(index, ..)| *index);
        integer(index, 6, 0x40, block);
        if index == 0 {
            string(name, block);
        }
        string(value, block);
        self.0.push((name.into(), value.into()));
    }
}

fn integer(value: usize, prefix: u8, flags: u8, block: &mut Vec<u8>) {
    encode_integer_into(value, prefix, flags, block).expect("a Vec can be written");
}

/// A string literal.
pub(super) fn string(text: &str, block: &mut Vec<u8>) {
    let (flags, octets) = match huffman(text) {
        Some(coded) => (0x80, coded),
        None => (0, text.into()),
    };
    integer(octets.len(), 7, flags, block);
    block.extend(octets);
}

/// HPACK's code is canonical: within a length the codes count up by symbol. The lengths of up to 8
/// bits are enough for paths and host names.
fn huffman(text: &str) -> Option<Vec<u8>> {
    const SYMBOLS: [(u32, &str); 4] = [
        (5, "012aceiost"),
        (6, " %-./3456789=A_bdfghlmnpru"),
        (7, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
        (8, "&*,;XZ"),
    ];
    let mut codes = Vec::new();
    let (mut code, mut before) = (0_u32, 5);
    for (length, symbols) in SYMBOLS {
        code <<= length - before;
        before = length;
        for symbol in symbols.chars() {
            codes.push((symbol, length, code));
            code += 1;
        }
    }
    let mut bits = String::new();
    for symbol in text.chars() {
        let (_, length, code) = codes.iter().find(|(s, ..)| *s == symbol)?;
        bits += &format!("{code:0width$b}", width = *length as usize);
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    let octet = |bits: &[u8]| bits.iter().fold(0, |octet, bit| octet << 1 | (bit - b'0'));
    Some(bits.as_bytes().chunks(8).map(octet).collect())
}
