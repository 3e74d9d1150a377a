#[path = "../../tests/fuzz/checks/authority.rs"]
mod check;

use super::hpack::{self, CODE_LENGTHS, Decoder, field_size};
use super::*;
use crate::random::Random;
use std::fs;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

const DATA: u8 = 0;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WHOLE: u8 = END_HEADERS | END_STREAM;

const AUTHORITY: &[u8] = b":authority";
const REGISTRY: &str = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fx-reg.sock";

/// GetInfo and NotifyRegistrationStatus as grpc-go encodes them on one connection: the
/// authority comes as a Huffman-coded literal that is indexed, then as its index.
const KUBELET: [&str; 2] = [
    "8386449c62ba2d98d558598c84d83498f52fb4b31909b06931ea63115392a94f41a854587b8ec545868346a8\
     b0f5b632d054aa2c35d16cc6a91158598c84d9e95161f2b58599741c9d7f5f8b1d75d0620d263d4c4d65647a\
     8a9acac8b4c7602bbc15c34082497f864d833505b11f40899acac8b24d494f6a7f867df7df7816ff",
    "838644a862ba2d98d558598c84d83498f52fb4b31909b06931ea6349d2697d6d2cc6426c1a4c7ab72469b51f\
     c3c2c1c07f008469f7dfa7",
];

fn hex(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn fields(list: &[(&str, &str)]) -> Fields {
    list.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Option<Fields> {
    let mut list = Vec::new();
    decoder.decode(block, |name, value| list.push((name.into(), value.into())))?;
    Some(list)
}

fn literals(list: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in list {
        hpack::encode(name.as_bytes(), value.as_bytes(), &mut block);
    }
    block
}

/// The code of each symbol, by the rule of RFC 7541 5.2 and appendix B.
fn huffman(text: &[u8]) -> Vec<u8> {
    let code_of = |symbol: u8| {
        let length = CODE_LENGTHS[usize::from(symbol)];
        let shorter = CODE_LENGTHS
            .iter()
            .enumerate()
            .filter(|(other, bits)| (**bits, *other) < (length, usize::from(symbol)));
        (shorter.map(|(_, bits)| 1u64 << (length - bits)).sum::<u64>(), length)
    };
    let mut bits = Vec::new();
    for (code, length) in text.iter().map(|symbol| code_of(*symbol)) {
        bits.extend((0..length).rev().map(|bit| (code >> bit & 1) as u8));
    }
    bits.resize(bits.len().next_multiple_of(8), 1);
    bits.chunks(8).map(|octet| octet.iter().fold(0, |value, bit| value << 1 | bit)).collect()
}

fn integer(first: u8, bits: u32, value: usize) -> Vec<u8> {
    let mask = (1 << bits) - 1;
    if value < mask {
        return vec![first | value as u8];
    }
    let mut octets = vec![first | mask as u8];
    let mut rest = value - mask;
    while rest > 0x7f {
        octets.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    octets.push(rest as u8);
    octets
}

fn string(text: &[u8], coded: bool) -> Vec<u8> {
    let text = if coded { huffman(text) } else { text.to_vec() };
    let mut octets = integer(if coded { 0x80 } else { 0 }, 7, text.len());
    octets.extend(text);
    octets
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut octets = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    octets.extend([kind, flags]);
    octets.extend(stream.to_be_bytes());
    octets.extend(payload);
    octets
}

fn connection(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut octets = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    octets.extend(frame(SETTINGS, 0, 0, b""));
    octets.extend(frames.concat());
    octets
}

/// A block in as few frames as can be, and empty ones up to `continuations`.
fn frames(block: &[u8], continuations: usize) -> Vec<Vec<u8>> {
    let mut payloads: Vec<_> = block.chunks(MAX_FRAME).collect();
    payloads.resize(payloads.len().max(continuations + 1), b"");
    let last = payloads.len() - 1;
    let kinds = std::iter::once((HEADERS, END_STREAM)).chain(std::iter::repeat((CONTINUATION, 0)));
    let parts = payloads.iter().zip(kinds).enumerate();
    parts
        .map(|(index, (payload, (kind, flags)))| {
            let end = if index == last { END_HEADERS } else { 0 };
            frame(kind, flags | end, 1, payload)
        })
        .collect()
}

/// The kubelet's side of a registration.
fn registration() -> Vec<u8> {
    connection(&[
        frame(SETTINGS, 1, 0, b""),
        frame(HEADERS, END_HEADERS, 1, &hex(KUBELET[0])),
        frame(DATA, END_STREAM, 1, &[0; 5]),
        frame(PING, 0, 0, &[2, 4, 16, 16, 9, 14, 7, 7]),
        frame(HEADERS, END_HEADERS, 3, &hex(KUBELET[1])),
        frame(DATA, END_STREAM, 3, &[7; 300]),
    ])
}

fn filtered_by(size: usize, input: &[u8]) -> Vec<u8> {
    let mut filter = Filter::new();
    let mut output = Vec::new();
    for piece in input.chunks(size) {
        filter.feed(piece, &mut output);
    }
    output
}

fn filtered(input: &[u8]) -> Vec<u8> {
    filtered_by(usize::MAX, input)
}

fn refused(input: &[u8]) -> bool {
    filtered(input).ends_with(&REFUSAL)
}

/// What a reader without a table of its own makes of each header block in `octets`.
fn lists(octets: &[u8]) -> Vec<Fields> {
    let mut rest = &octets[PREFACE..];
    let (mut lists, mut block) = (Vec::new(), Vec::new());
    while let Some(head) = rest.split_off(..HEAD) {
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        assert!(head[0] == 0 && length <= MAX_FRAME);
        let payload = rest.split_off(..length).unwrap();
        if matches!(head[3], HEADERS | CONTINUATION) {
            block.extend(payload);
            if head[4] & END_HEADERS != 0 {
                lists.push(loona_hpack::Decoder::new().decode(&block).unwrap());
                block.clear();
            }
        }
    }
    assert!(rest.is_empty() && block.is_empty());
    lists
}

/// The one authority that h2 sees for `block`, if it sees one.
fn authority(block: &[u8]) -> Option<Vec<u8>> {
    let output = filtered(&connection(&[frame(HEADERS, WHOLE, 1, block)]));
    let list = lists(&output).pop().unwrap();
    list.into_iter().find_map(|(name, value)| (name == AUTHORITY).then_some(value))
}

impl Random {
    fn text(&mut self) -> Vec<u8> {
        let any = self.below(4) == 0;
        let length = [0, 3, 10, 60, 130, 300][self.below(6)];
        (0..self.below(length + 1))
            .map(|_| if any { self.below(256) as u8 } else { b'a' + self.below(26) as u8 })
            .collect()
    }

    /// A block whose indices may be a little beyond the table.
    fn block(&mut self) -> Vec<u8> {
        let mut block = Vec::new();
        if self.below(8) == 0 {
            block.extend(integer(0x20, 5, [0, 100, 1000, 4096][self.below(4)]));
        }
        for _ in 0..1 + self.below(8) {
            let (first, bits) = [(0x80, 7), (0x40, 6), (0x40, 6), (0x10, 4), (0, 4)][self.below(5)];
            let index =
                [0, 0, 1 + self.below(61), 1 + self.below(61), 62 + self.below(3)][self.below(5)];
            if first == 0x80 {
                block.extend(integer(first, bits, index.max(1)));
                continue;
            }
            block.extend(integer(first, bits, index));
            for _ in 0..if index == 0 { 2 } else { 1 } {
                let coded = self.below(2) == 0;
                block.extend(string(&self.text(), coded));
            }
        }
        block
    }
}

#[test]
fn decodes_the_examples_of_the_rfc() {
    let get = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    let host = (":authority", "www.example.com");
    let requests = [
        fields(&[get[0], get[1], get[2], host]),
        fields(&[get[0], get[1], get[2], host, ("cache-control", "no-cache")]),
        fields(&[
            get[0],
            (":scheme", "https"),
            (":path", "/index.html"),
            host,
            ("custom-key", "custom-value"),
        ]),
    ];
    let rest = [
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:21 GMT"),
        ("location", "https://www.example.com"),
    ];
    let responses = [
        fields(&[(":status", "302"), rest[0], rest[1], rest[2]]),
        fields(&[(":status", "307"), rest[0], rest[1], rest[2]]),
        fields(&[
            (":status", "200"),
            rest[0],
            ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
            rest[2],
            ("content-encoding", "gzip"),
            ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"),
        ]),
    ];
    let custom = fields(&[("custom-key", "custom-header")]);
    // Appendix C.2 to C.6. The responses there have a table of 256 octets, said here by 3fe101.
    let cases: [(&str, &[Fields]); 8] = [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", &[custom]),
        ("040c2f73616d706c652f70617468", &[fields(&[(":path", "/sample/path")])]),
        ("100870617373776f726406736563726574", &[fields(&[("password", "secret")])]),
        ("82", &[fields(&[(":method", "GET")])]),
        (
            "828684410f7777772e6578616d706c652e636f6d 828684be58086e6f2d6361636865 \
             828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
            &requests,
        ),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff 828684be5886a8eb10649cbf \
             828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
            &requests,
        ),
        (
            "3fe1014803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a\
             323120474d546e1768747470733a2f2f7777772e6578616d706c652e636f6d 4803333037c1c0bf \
             88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738\
             666f6f3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d33\
             3630303b2076657273696f6e3d31",
            &responses,
        ),
        (
            "3fe101488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29\
             ad171863c78f0b97c8e9ae82ae43d3 4883640effc1c0bf 88c16196d07abe941054d444a82005950\
             40b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1a\
             b270fb5291f9587316065c003ed4ee5b1063d5007",
            &responses,
        ),
    ];
    for (blocks, expected) in cases {
        let mut decoder = Decoder::new();
        let blocks = blocks.split(' ').map(hex);
        let lists: Option<Vec<_>> = blocks.map(|block| decode(&mut decoder, &block)).collect();
        assert_eq!(lists.as_deref(), Some(expected));
    }
}

#[test]
fn decodes_every_octet_and_every_static_index_like_another_decoder() {
    for symbol in 0..=255 {
        let mut block = vec![0];
        block.extend(string(&[symbol; 5], true));
        block.extend(string(&[symbol, b'a', symbol], true));
        let expected = vec![(vec![symbol; 5], vec![symbol, b'a', symbol])];
        assert_eq!(loona_hpack::Decoder::new().decode(&block).unwrap(), expected);
        assert_eq!(decode(&mut Decoder::new(), &block), Some(expected));
    }
    for index in 0x81..=0xbd {
        let expected = loona_hpack::Decoder::new().decode(&[index]).unwrap();
        assert_eq!(decode(&mut Decoder::new(), &[index]), Some(expected));
    }
}

#[test]
fn refuses_malformed_blocks() {
    for block in [
        "80",             // index 0
        "be",             // beyond the static table, and the dynamic one is empty
        "7e00",           // the same as a name
        "ff",             // an integer that does not end
        "ffffffffff00",   // of six octets
        "ff80808080",     // of five that go on
        "41",             // no value
        "4103 6162",      // a value cut off
        "00",             // no name
        "417fffffff7f",   // a length beyond the block
        "4181ff",         // Huffman: padding of eight bits
        "418100",         // padding by zeros, after '0'
        "4184ffffffff",   // EOS
        "4184fffffffc",   // EOS and its padding
        "8220",           // a size update after a field
        "3fe21f",         // to 4,097
        "3fffffffff0f82", // to 2^32
    ] {
        let block = hex(&block.replace(' ', ""));
        assert_eq!(decode(&mut Decoder::new(), &block), None, "{block:x?}");
        assert!(refused(&connection(&[frame(HEADERS, WHOLE, 1, &block)])), "{block:x?}");
    }
}

#[test]
fn accepts_what_is_only_odd() {
    for (block, list) in [
        ("", &[][..]),
        ("3fe11f", &[]),
        ("203f0082", &[(":method", "GET")]),
        ("000000", &[("", "")]),
        ("008080", &[("", "")]),
        ("4100", &[(":authority", "")]),
        ("0f800001 61", &[("accept-charset", "a")]),
        ("0f80808000 0161", &[("accept-charset", "a")]),
    ] {
        let decoded = decode(&mut Decoder::new(), &hex(&block.replace(' ', "")));
        assert_eq!(decoded, Some(fields(list)), "{block}");
    }
}

#[test]
fn the_table_evicts_the_oldest_and_obeys_its_size() {
    let mut decoder = Decoder::new();
    let mut run = |block: &str| decode(&mut decoder, &hex(block));
    // Three entries of 34 octets each: "a1", "b2", "c3".
    assert!(run("400161013140016201324001630133").is_some());
    assert_eq!(run("bebfc0"), Some(fields(&[("c", "3"), ("b", "2"), ("a", "1")])));
    assert_eq!(run("c1"), None);
    // Room for 67 octets, one less than two of them need.
    assert_eq!(run("3f24be"), Some(fields(&[("c", "3")])));
    assert_eq!(run("bf"), None);
    // A name from the entry that its own insertion evicts.
    assert_eq!(run("7e0135be"), Some(fields(&[("c", "5"), ("c", "5")])));
    // An entry larger than the table empties it, and is shown all the same.
    let large = "x".repeat(40);
    let mut block = hex("400161");
    block.extend(string(large.as_bytes(), false));
    assert_eq!(decode(&mut decoder, &block), Some(fields(&[("a", &large)])));
    let mut run = |block: &str| decode(&mut decoder, &hex(block));
    assert_eq!(run("be"), None);
    // Growing again brings nothing back.
    assert_eq!(run("203fe11f82"), Some(fields(&[(":method", "GET")])));
    assert_eq!(run("be"), None);
}

#[test]
fn the_table_holds_an_entry_of_4096_octets_and_none_of_4097() {
    for (length, kept) in [(4063, true), (4064, false)] {
        let mut decoder = Decoder::new();
        let mut block = hex("400161");
        block.extend(string(&vec![b'v'; length], false));
        assert!(decode(&mut decoder, &block).is_some());
        assert_eq!(decode(&mut decoder, &[0xbe]).is_some(), kept, "{length}");
    }
}

#[test]
fn decodes_random_blocks_like_another_decoder() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut decoded = 0;
    for _ in 0..150 {
        let mut ours = Decoder::new();
        let mut theirs = loona_hpack::Decoder::new();
        theirs.set_max_allowed_table_size(4096);
        for _ in 0..20 {
            let block = random.block();
            let (ours, theirs) = (decode(&mut ours, &block), theirs.decode(&block).ok());
            assert_eq!(ours, theirs, "{block:x?}");
            if ours.is_none() {
                break;
            }
            decoded += 1;
        }
    }
    assert!(decoded > 500, "{decoded}");
}

#[test]
fn decodes_damaged_blocks_only_as_another_decoder_does() {
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for _ in 0..1500 {
        let mut block = random.block();
        for _ in 0..1 + random.below(3) {
            let place = random.below(block.len());
            block[place] = random.below(256) as u8;
        }
        block.truncate(1 + random.below(2 * block.len()));
        let mut theirs = loona_hpack::Decoder::new();
        theirs.set_max_allowed_table_size(4096);
        // The other one is the less strict.
        if let Some(list) = decode(&mut Decoder::new(), &block).filter(|list| !list.is_empty()) {
            assert_eq!(theirs.decode(&block).ok(), Some(list), "{block:x?}");
        }
    }
}

#[test]
fn literals_read_back_as_they_were() {
    for length in [0, 1, 126, 127, 128, 254, 255, 256, 16_511, 16_512, 70_000] {
        let text = "t".repeat(length);
        let list = [("name", text.as_str()), (text.as_str(), "value")];
        let block = literals(&list);
        assert_eq!(decode(&mut Decoder::new(), &block), Some(fields(&list)));
        assert_eq!(loona_hpack::Decoder::new().decode(&block).unwrap(), fields(&list));
    }
}

#[test]
fn replaces_what_h2_takes_for_no_authority() {
    let long = "%2F".repeat(200);
    for value in [
        REGISTRY,
        "/var/lib/kubelet/plugins_registry/x-reg.sock",
        "",
        "a b",
        "[::1",
        "%",
        "not an authority/%zz@:x",
        "k\u{fc}belet",
        "host/path",
        "a:b:c",
        "user@",
        "\0",
        &long,
    ] {
        for coded in [false, true] {
            // Indexed, not indexed, never indexed; by static index 1 and by name.
            for first in [0x41, 0x01, 0x11, 0x40, 0x00, 0x10] {
                let mut block = vec![first];
                if first & 0x0f == 0 {
                    block.extend(string(AUTHORITY, coded));
                }
                block.extend(string(value.as_bytes(), coded));
                assert_eq!(authority(&block).unwrap(), b"localhost", "{value} {first:x}");
            }
        }
    }
    assert_eq!(authority(&[0x41, 2, 0xff, 0xfe]).unwrap(), b"localhost");
    // The static table has one with an empty value.
    assert_eq!(authority(&[0x81]).unwrap(), b"localhost");
}

#[test]
fn leaves_an_authority_as_it_is() {
    let long = "h".repeat(200);
    for value in ["localhost", "[::]:50051", "10.0.0.1:80", "user%2F@host", "a_b", "x:", &long] {
        assert_eq!(authority(&literals(&[(":authority", value)])).unwrap(), value.as_bytes());
    }
    assert_eq!(authority(&literals(&[(":path", "/"), ("authority", "/")])), None);
}

#[test]
fn leaves_faults_in_the_fields_to_h2() {
    let list = [
        (":authority", "localhost"),
        (":authority", "localhost"),
        ("Upper", "case"),
        ("", ""),
        ("connection", "close"),
        (":path", ""),
    ];
    let input = connection(&[frame(HEADERS, WHOLE, 2, &literals(&list))]);
    assert_eq!(filtered(&input), input);
}

#[test]
fn lets_a_kubelet_through() {
    let request = |path, timeout| {
        fields(&[
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("user-agent", "grpc-go/1.81.1"),
            ("te", "trailers"),
            ("grpc-timeout", timeout),
        ])
    };
    let output = filtered(&registration());
    let service = "/pluginregistration.Registration";
    assert_eq!(
        lists(&output),
        [
            request(&format!("{service}/GetInfo"), "999980u"),
            request(&format!("{service}/NotifyRegistrationStatus"), "4999m"),
        ]
    );
    assert!(output.ends_with(&frame(DATA, END_STREAM, 3, &[7; 300])));
}

#[test]
fn follows_names_and_values_through_the_table() {
    let mut first = hex("400178017940");
    first.extend(string(AUTHORITY, true));
    first.extend(string(REGISTRY.as_bytes(), true));
    let mut second = vec![0x7e];
    second.extend(string(b"[::1", false));
    let third = hex("bebfc0");
    let input = connection(&[
        frame(HEADERS, WHOLE, 1, &first),
        frame(HEADERS, WHOLE, 3, &literals(&[(":authority", "good")])),
        frame(HEADERS, WHOLE, 5, &second),
        frame(HEADERS, WHOLE, 7, &third),
    ]);
    let local = (":authority", "localhost");
    assert_eq!(
        lists(&filtered(&input)),
        [
            fields(&[("x", "y"), local]),
            fields(&[(":authority", "good")]),
            fields(&[local]),
            fields(&[local, local, ("x", "y")]),
        ]
    );
}

#[test]
fn keeps_everything_that_is_no_header_block() {
    let kept = [
        frame(SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]),
        frame(DATA, END_STREAM | PADDED, 1, &[0xff; MAX_FRAME]),
        frame(2, 0, 1, &[0; 5]),
        frame(3, 0, 1, &[0; 4]),
        frame(5, END_HEADERS, 1, &[0, 0, 0, 2, 0x82]),
        frame(7, 0, 0, &[0; 30]),
        frame(8, 0, 0, &[0; 4]),
        frame(CONTINUATION, END_HEADERS, 1, &[0x82]),
        frame(0xff, 0xff, u32::MAX, b"unknown"),
        frame(DATA, 0, 0, b""),
        frame(HEADERS, WHOLE, 1, &[0; MAX_FRAME + 1]),
    ];
    let input = connection(&kept);
    assert_eq!(filtered(&input), input);
    let input = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(filtered(input)[..PREFACE], input[..PREFACE]);
}

#[test]
fn joins_a_block_however_it_is_cut() {
    let block = hex(KUBELET[0]);
    let whole = filtered(&connection(&[frame(HEADERS, WHOLE, 1, &block)]));
    for cut in 0..=block.len() {
        let (first, second) = block.split_at(cut);
        for padding in [0, 1, 255] {
            let padded = [&[padding], first, &vec![0; padding.into()]].concat();
            let both = [&[padding, 0x80, 0, 0, 3, 200], first, &vec![0; padding.into()]].concat();
            for head in [
                frame(HEADERS, END_STREAM, 1, first),
                frame(HEADERS, END_STREAM | PADDED, 1, &padded),
                frame(HEADERS, END_STREAM | PADDED | PRIORITY, 1, &both),
            ] {
                // Flags of HEADERS mean nothing in CONTINUATION, nor does the reserved bit.
                let flags = END_STREAM | PADDED | PRIORITY;
                let input = connection(&[
                    head,
                    frame(CONTINUATION, flags, 1 | 1 << 31, b""),
                    frame(CONTINUATION, END_HEADERS | flags, 1, second),
                ]);
                assert_eq!(filtered(&input), whole, "{cut} {padding}");
            }
        }
    }
}

#[test]
fn refuses_padding_or_priority_beyond_the_frame() {
    for (flags, payload, fits) in [
        (PADDED, &b""[..], false),
        (PADDED, b"\0", true),
        (PADDED, b"\x02\0\0", true),
        (PADDED, b"\x03\0\0", false),
        (PRIORITY, b"1234", false),
        (PRIORITY, b"12345", true),
        (PADDED | PRIORITY, b"\x0112345\0", true),
        (PADDED | PRIORITY, b"\x0212345\0", false),
    ] {
        let input = connection(&[frame(HEADERS, END_HEADERS | flags, 1, payload)]);
        assert_eq!(refused(&input), !fits, "{flags:x} {payload:x?}");
    }
}

#[test]
fn refuses_any_other_frame_amid_a_block_and_all_that_follows() {
    for (kind, stream) in [
        (DATA, 1),
        (HEADERS, 1),
        (HEADERS, 3),
        (SETTINGS, 0),
        (PING, 0),
        (0xff, 1),
        (CONTINUATION, 3),
        (CONTINUATION, 0),
    ] {
        let started = connection(&[]);
        let mut input = started.clone();
        input.extend(frame(HEADERS, 0, 1, &[0x82]));
        input.extend(frame(kind, END_HEADERS, stream, &[0; 8]));
        input.extend(frame(PING, 0, 0, &[0; 8]));
        assert_eq!(filtered(&input), [&started[..], &REFUSAL].concat(), "{kind} {stream}");
    }
    // A frame that is too long is refused by h2 itself.
    let mut input = connection(&[frame(HEADERS, 0, 1, &[0x82])]);
    input.extend([0xff, 0xff, 0xff, CONTINUATION, 0, 0, 0, 0, 1]);
    assert!(filtered(&input).ends_with(&input[input.len() - HEAD..]));
}

#[test]
fn limits_a_block_and_its_frames() {
    for (octets, continuations, fits) in [
        (MAX_BLOCK, 0, true),
        (MAX_BLOCK + 1, 0, false),
        (9, MAX_CONTINUATIONS, true),
        (9, MAX_CONTINUATIONS + 1, false),
    ] {
        let input = connection(&frames(&vec![0x82; octets], continuations));
        assert_eq!(refused(&input), !fits, "{octets} {continuations}");
    }
}

#[test]
fn drops_fields_beyond_the_limit_of_the_list_but_follows_them() {
    for (size, seen) in [(MAX_LIST, 2), (MAX_LIST + 1, 1)] {
        let mut block = literals(&[("large", &"v".repeat(size - field_size(b"large", b"")))]);
        block.extend(hex("400178017982"));
        let mut input = connection(&frames(&block, 0));
        input.extend(frame(HEADERS, WHOLE, 3, &[0xbe]));
        let lists = lists(&filtered(&input));
        assert_eq!(lists[0].len(), seen);
        assert_eq!(lists[1], fields(&[("x", "y")]));
    }
}

#[test]
fn splits_a_long_block_into_frames() {
    // Without their value the literals take six octets, and seven where that is longer.
    for full in [MAX_FRAME - 6, 2 * MAX_FRAME - 7] {
        for value in full - 1..=full + 1 {
            let block = literals(&[("n", &"v".repeat(value))]);
            assert_eq!(block.len() % MAX_FRAME, [MAX_FRAME - 1, 0, 1][value + 1 - full]);
            let input = connection(&frames(&block, 0));
            assert_eq!(filtered(&input), input, "{value}");
        }
    }
}

#[test]
fn a_bomb_stays_small() {
    let mut table = hex("400161");
    table.extend(string(&[b'v'; 4000], false));
    let mut names = vec![0x40];
    names.extend(string(&[b'n'; 4000], false));
    names.push(0);
    let mut coded = hex("0f00");
    coded.extend(integer(0x80, 7, MAX_BLOCK - 6));
    for (start, repeated) in [
        (table, vec![0xbe]),
        (names, vec![0x7e, 0]),
        (vec![], vec![0x40, 0, 0]),
        (vec![], vec![0x20]),
        (vec![], vec![0x82]),
        // One Huffman-coded value of '0', which takes five bits.
        (coded, vec![0]),
    ] {
        let mut block = start;
        while block.len() + repeated.len() <= MAX_BLOCK {
            block.extend(&repeated);
        }
        let (mut filter, mut output) = (Filter::new(), Vec::new());
        filter.feed(&connection(&frames(&block, 0)), &mut output);
        assert!(!filter.refused && output.len() < 2 * MAX_BLOCK, "{repeated:x?}");
        assert!(filter.block.is_none() && filter.held.capacity() == 0);
    }
}

#[test]
fn keeps_nothing_after_a_refusal() {
    let (mut filter, mut output) = (Filter::new(), Vec::new());
    filter.feed(&connection(&frames(&[0x80], 0)), &mut output);
    let length = output.len();
    filter.feed(&registration(), &mut output);
    assert_eq!((output.len(), filter.held.capacity()), (length, 0));
}

#[test]
fn pieces_of_any_size_come_to_the_same() {
    let input = registration();
    let whole = filtered(&input);
    for size in 1..input.len() {
        assert_eq!(filtered_by(size, &input), whole, "{size}");
    }
}

#[test]
fn twice_is_the_same_as_once() {
    let once = filtered(&registration());
    assert_eq!(filtered(&once), once);
    let once = filtered(&connection(&[frame(HEADERS, WHOLE, 1, &[0x80])]));
    assert!(once.ends_with(&REFUSAL));
    assert_eq!(filtered(&once), once);
}

#[test]
fn survives_any_damage() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let intact = registration();
    let mut refusals = 0;
    for _ in 0..2000 {
        let mut input = intact.clone();
        for _ in 0..1 + random.below(4) {
            let place = random.below(input.len());
            match random.below(3) {
                0 => input[place] = random.below(256) as u8,
                1 => drop(input.remove(place)),
                _ => input.insert(place, random.below(256) as u8),
            }
        }
        let whole = filtered(&input);
        assert_eq!(filtered_by(1, &input), whole, "{input:x?}");
        assert_eq!(filtered(&whole), whole, "{input:x?}");
        refusals += usize::from(whole.ends_with(&REFUSAL));
    }
    assert!((100..1900).contains(&refusals), "{refusals}");
}

#[test]
fn the_fuzzers_corpus_holds() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/authority");
    for file in fs::read_dir(corpus).unwrap() {
        check::check(&fs::read(file.unwrap().path()).unwrap());
    }
}

/// The only case in which twice is not once.
#[test]
fn a_block_that_has_grown_too_large_is_refused_the_second_time() {
    let name = [&[0][..], &string(b"n", false)].concat();
    let coded = [integer(0x80, 7, MAX_BLOCK - 36), vec![0; MAX_BLOCK - 36]].concat();
    let input = connection(&frames(&[name, coded].concat(), 0));
    let once = filtered(&input);
    assert!(once.len() > MAX_BLOCK && filtered(&once).ends_with(&REFUSAL));
    check::check(&input);
}

#[test]
fn both_tables_stay_in_step_over_many_requests() {
    let authorities = ["localhost", REGISTRY, "/run/x.sock", "", "[::]:50051", "[::1"];
    let mut encoder = loona_hpack::Encoder::new();
    let (mut requests, mut expected) = (Vec::new(), Vec::new());
    for turn in 0..3000 {
        let authority = authorities[turn % authorities.len()];
        let (name, value) = (format!("x-{}", turn % 7), "y".repeat(turn * 37 % 1500));
        let turn = turn.to_string();
        let list = |authority| {
            let same = ("x-same", "value");
            fields(&[
                (":method", "POST"),
                (":authority", authority),
                same,
                ("x-turn", &turn),
                (&name, &value),
            ])
        };
        let sent = list(authority);
        let block = encoder.encode(sent.iter().map(|(name, value)| (&name[..], &value[..])));
        requests.push(frame(HEADERS, WHOLE, 1, &block));
        let good = Authority::try_from(authority).is_ok();
        expected.push(list(if good { authority } else { "localhost" }));
    }
    assert_eq!(lists(&filtered_by(4096, &connection(&requests))), expected);
}

#[tokio::test]
async fn a_reader_gets_what_the_filter_yields() {
    let input = registration();
    let expected = filtered(&input);
    for size in [1, 7, 100, 8192] {
        let mut admitted = Admit::new(&input[..]);
        let (mut output, mut buffer) = (Vec::new(), vec![0; size]);
        loop {
            match admitted.read(&mut buffer).await.unwrap() {
                0 => break,
                count => output.extend_from_slice(&buffer[..count]),
            }
        }
        assert_eq!(output, expected, "{size}");
        assert_eq!(admitted.ready.capacity(), 0);
    }
}

#[tokio::test]
async fn a_reader_waits_for_what_is_not_complete() {
    let input = registration();
    let (mut client, server) = tokio::io::duplex(1);
    let mut admitted = Admit::new(server);
    let mut output = Vec::new();
    let write = async {
        client.write_all(&input).await.unwrap();
        drop(client);
    };
    let (_, read) = tokio::join!(write, admitted.read_to_end(&mut output));
    assert_eq!(read.unwrap(), output.len());
    assert_eq!(output, filtered(&input));
}

#[tokio::test]
async fn the_end_of_the_stream_is_passed_on_wherever_it_comes() {
    let input = registration();
    for length in 0..input.len() {
        let mut output = Vec::new();
        Admit::new(&input[..length]).read_to_end(&mut output).await.unwrap();
        assert_eq!(output, filtered(&input[..length]));
    }
}

#[tokio::test]
async fn a_refusal_ends_the_stream_although_the_client_stays() {
    let (mut client, server) = tokio::io::duplex(1024);
    client.write_all(&connection(&[frame(HEADERS, WHOLE, 1, &[0x80])])).await.unwrap();
    let mut output = Vec::new();
    Admit::new(server).read_to_end(&mut output).await.unwrap();
    assert!(output.ends_with(&REFUSAL));
    client.write_all(b"still here").await.unwrap_err();
}

#[tokio::test]
async fn what_is_written_goes_out_untouched() {
    let mut admitted = Admit::new(Vec::new());
    assert!(admitted.is_write_vectored());
    let parts = [IoSlice::new(b"one "), IoSlice::new(b"two ")];
    assert_eq!(admitted.write_vectored(&parts).await.unwrap(), 8);
    admitted.write_all(b"three").await.unwrap();
    admitted.flush().await.unwrap();
    admitted.shutdown().await.unwrap();
    assert_eq!(admitted.stream, b"one two three");
}
