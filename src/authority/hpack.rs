//! HPACK as the filter needs it (RFC 7541): a decoder, and the one encoding without a table.

use std::collections::VecDeque;

/// The most the table may hold: SETTINGS_HEADER_TABLE_SIZE unless a server says otherwise.
const MAX_TABLE: usize = 4_096;

/// Decodes the header blocks of one direction of a connection, in their order.
pub(super) struct Decoder {
    /// The newest entry first, as indices count.
    entries: VecDeque<(Vec<u8>, Vec<u8>)>,
    size: usize,
    limit: usize,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { entries: VecDeque::new(), size: 0, limit: MAX_TABLE }
    }

    /// Shows the name and value of each field of a block to `visit`. `None` is a malformed
    /// block, after which nothing on the connection can be decoded.
    pub(super) fn decode(
        &mut self,
        mut block: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Option<()> {
        while let Some(0x20..=0x3f) = block.first() {
            self.limit = integer(&mut block, 5).filter(|limit| *limit <= MAX_TABLE)?;
            self.evict(self.limit);
        }
        while let Some(&first) = block.first() {
            match first {
                0x80.. => {
                    let (name, value) = self.entry(integer(&mut block, 7)?)?;
                    visit(name, value);
                }
                // The size of the table changes only ahead of the fields.
                0x20..=0x3f => return None,
                _ => {
                    let indexed = first & 0x40 != 0;
                    let name = match integer(&mut block, if indexed { 6 } else { 4 })? {
                        0 => string(&mut block)?,
                        index => self.entry(index)?.0.to_vec(),
                    };
                    let value = string(&mut block)?;
                    visit(&name, &value);
                    if indexed {
                        self.insert(name, value);
                    }
                }
            }
        }
        Some(())
    }

    fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let index = index.checked_sub(1)?;
        match STATIC_TABLE.get(index) {
            Some((name, value)) => Some((name.as_bytes(), value.as_bytes())),
            None => {
                let (name, value) = self.entries.get(index - STATIC_TABLE.len())?;
                Some((name, value))
            }
        }
    }

    /// An entry larger than the table leaves it empty (RFC 7541, 4.4).
    fn insert(&mut self, name: Vec<u8>, value: Vec<u8>) {
        let size = field_size(&name, &value);
        self.evict(self.limit.saturating_sub(size));
        if size <= self.limit {
            self.size += size;
            self.entries.push_front((name, value));
        }
    }

    fn evict(&mut self, size: usize) {
        while self.size > size
            && let Some((name, value)) = self.entries.pop_back()
        {
            self.size -= field_size(&name, &value);
        }
    }
}

/// What a field counts, in octets, both in the table and in a header list.
pub(super) fn field_size(name: &[u8], value: &[u8]) -> usize {
    name.len() + value.len() + 32
}

/// Appends a field as a literal that stays out of the reader's table.
pub(super) fn encode(name: &[u8], value: &[u8], block: &mut Vec<u8>) {
    block.push(0);
    for text in [name, value] {
        let mut length = text.len();
        if length < 0x7f {
            block.push(length as u8);
        } else {
            block.push(0x7f);
            length -= 0x7f;
            while length > 0x7f {
                block.push(0x80 | (length & 0x7f) as u8);
                length >>= 7;
            }
            block.push(length as u8);
        }
        block.extend_from_slice(text);
    }
}

/// Takes an integer that begins in the low `bits` bits of an octet. One of more than five
/// octets (about 2^28) is refused, so that nothing can overflow.
fn integer(input: &mut &[u8], bits: u32) -> Option<usize> {
    let mask = (1 << bits) - 1;
    let mut value = usize::from(*input.split_off_first()?) & mask;
    if value < mask {
        return Some(value);
    }
    for shift in [0, 7, 14, 21] {
        let octet = usize::from(*input.split_off_first()?);
        value += (octet & 0x7f) << shift;
        if octet < 0x80 {
            return Some(value);
        }
    }
    None
}

fn string(input: &mut &[u8]) -> Option<Vec<u8>> {
    let coded = input.first()? & 0x80 != 0;
    let length = integer(input, 7)?;
    let octets = input.split_off(..length)?;
    if coded { huffman(octets) } else { Some(octets.to_vec()) }
}

fn huffman(mut octets: &[u8]) -> Option<Vec<u8>> {
    // No code is shorter than five bits.
    let mut text = Vec::with_capacity(octets.len() * 8 / 5);
    // The next bits, from the highest on, and how many they are.
    let (mut bits, mut held) = (0_u64, 0);
    loop {
        while held <= 56
            && let Some(octet) = octets.split_off_first()
        {
            bits |= u64::from(*octet) << (56 - held);
            held += 8;
        }
        // All bits begin with some symbol's code, but for that of EOS, which may not occur.
        let code = |length: usize| (bits >> (64 - length)) as u32;
        let length = (5..=30).find(|length| code(*length) < HUFFMAN.end[*length]);
        let Some(length) = length.filter(|length| *length <= held) else {
            break;
        };
        let rank = HUFFMAN.rank[length] + (code(length) - HUFFMAN.first[length]) as usize;
        text.push(HUFFMAN.symbols[rank]);
        bits <<= length;
        held -= length;
    }
    // The beginning of EOS, which is all ones.
    let padded = held < 8 && bits.leading_ones() as usize == held;
    padded.then_some(text)
}

/// A canonical code: the codes of one length are consecutive numbers, in the order of
/// their symbols, and the first one follows from the codes that are shorter.
struct Huffman {
    /// The first code of each length.
    first: [u32; 31],
    /// One more than the last code of each length.
    end: [u32; 31],
    /// How many symbols have a shorter code than this length.
    rank: [usize; 31],
    /// In the order of their codes.
    symbols: [u8; 256],
}

static HUFFMAN: Huffman = {
    let mut huffman = Huffman { first: [0; 31], end: [0; 31], rank: [0; 31], symbols: [0; 256] };
    let (mut length, mut code, mut rank) = (1, 0, 0);
    while length <= 30 {
        code <<= 1;
        huffman.first[length] = code;
        huffman.rank[length] = rank;
        let mut symbol = 0;
        while symbol < 256 {
            if CODE_LENGTHS[symbol] as usize == length {
                huffman.symbols[rank] = symbol as u8;
                code += 1;
                rank += 1;
            }
            symbol += 1;
        }
        huffman.end[length] = code;
        length += 1;
    }
    huffman
};

/// Bits of each octet's code (RFC 7541, appendix B).
pub(super) const CODE_LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Index 1 is the first of these; the dynamic table follows (RFC 7541, appendix A).
static STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
