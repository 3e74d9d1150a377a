//! What holds of the filter for any input; also replayed over the corpus by `cargo test`.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, ReadBuf};

use crate::authority::Admit;

/// The most octets of one header block that the filter takes.
const TAKEN: usize = 65_536;
/// The most that it makes of one: a list of 32 KiB and the field that goes beyond, which may be
/// the whole block in codes of five bits, with the heads of the frames.
const MADE: usize = 32_768 + TAKEN * 8 / 5 + 100;
/// The last frame of a connection that is over.
const REFUSAL: [u8; 9] = [0, 0, 0, 1, 4, 0, 0, 0, 0];
const HEAD: usize = 9;

pub(crate) fn check(input: &[u8]) {
    let (once, _) = admitted(input, usize::MAX);
    for size in [1, 100] {
        let (pieces, most) = admitted(input, size);
        assert!(pieces == once, "pieces of {size} octets make a difference");
        assert!(most <= MADE + size, "{most} octets came of {size}");
    }
    let (twice, _) = admitted(&once, usize::MAX);
    if twice != once {
        // A block may have grown, in plain literals, beyond what is taken.
        let kept = twice.strip_suffix(&REFUSAL).expect("a refusal");
        let refused = once.strip_prefix(kept).expect("the same up to there");
        assert!(length_of_block(refused) > TAKEN, "twice is not once");
    }
}

/// What a reader gets who reads whatever is there, and the longest of its reads, when the client's
/// octets come in pieces of this size.
fn admitted(input: &[u8], size: usize) -> (Vec<u8>, usize) {
    let mut stream = Admit::new(Pieces { rest: input, size });
    let mut buffer = Vec::<u8>::with_capacity(MADE + input.len());
    let (mut output, mut most) = (Vec::new(), 0);
    loop {
        let mut buffer = ReadBuf::uninit(buffer.spare_capacity_mut());
        let mut context = Context::from_waker(Waker::noop());
        let read = Pin::new(&mut stream).poll_read(&mut context, &mut buffer);
        assert!(matches!(read, Poll::Ready(Ok(()))), "{read:?}");
        if buffer.filled().is_empty() {
            return (output, most);
        }
        most = most.max(buffer.filled().len());
        output.extend(buffer.filled());
    }
}

/// The payload of the frames up to the end of the header block that they begin with.
fn length_of_block(mut frames: &[u8]) -> usize {
    let mut length = 0;
    while let Some(head) = frames.split_off(..HEAD) {
        let payload = usize::from(head[1]) << 8 | usize::from(head[2]);
        length += payload;
        let is_last = head[4] & 4 != 0;
        if is_last || frames.split_off(..payload).is_none() {
            break;
        }
    }
    length
}

struct Pieces<'a> {
    rest: &'a [u8],
    size: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let size = self.size.min(self.rest.len()).min(buffer.remaining());
        let (piece, rest) = self.rest.split_at(size);
        buffer.put_slice(piece);
        self.rest = rest;
        Poll::Ready(Ok(()))
    }
}
