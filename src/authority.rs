//! Lets a real kubelet through the HTTP/2 library.
//!
//! The kubelet dials the registration socket by its path alone, and its requests then carry
//! that path as `:authority`, percent-encoded. h2, on which hyper and tonic stand, resets
//! every request whose authority breaks the grammar of URIs, and no option changes that
//! (<https://github.com/hyperium/h2/pull/487>): the driver would never register.
//!
//! [`Admit`] therefore stands between an accepted connection and h2, and puts `localhost` in
//! the place of such an authority. As a compressed field may refer to earlier ones, it decodes
//! every header block and passes it on as plain literals, which leave h2's own table empty.
//! Every other fault is left for h2 to answer.

mod hpack;
#[cfg(test)]
mod tests;

use http::uri::Authority;
use std::io::{self, IoSlice};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Octets of the client's connection preface, and of the head of a frame (RFC 9113, 3.4 and 4.1).
const PREFACE: usize = 24;
const HEAD: usize = 9;

/// The largest payload of a frame that h2 takes unless the server raises it, in octets.
const MAX_FRAME: usize = 16_384;
/// Limits on one header block: its octets, and the frames that continue it.
const MAX_BLOCK: usize = 65_536;
const MAX_CONTINUATIONS: usize = 64;
/// Fields after this size of the header list are dropped. It has to be above the server's own
/// limit (16,384 by default), so that h2 still sees that the list is too large.
const MAX_LIST: usize = 32_768;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// HEADERS on stream 0, which h2 answers with GOAWAY at any point of a connection.
const REFUSAL: [u8; HEAD] = [0, 0, 0, HEADERS, END_HEADERS, 0, 0, 0, 0];

/// An accepted connection; what is read through it carries only authorities that h2 accepts.
pub(crate) struct Admit<S> {
    stream: S,
    filter: Filter,
    /// Filtered and not yet read.
    ready: Vec<u8>,
}

impl<S> Admit<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, filter: Filter::new(), ready: Vec::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Admit<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // To return without any octet is to say that the stream has ended.
        while this.ready.is_empty() && !this.filter.refused {
            let start = buf.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
            let input = &buf.filled()[start..];
            if input.is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.filter.feed(input, &mut this.ready);
            buf.set_filled(start);
        }
        let rest = this.ready.split_off(buf.remaining().min(this.ready.len()));
        buf.put_slice(&this.ready);
        this.ready = rest;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Admit<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Turns what a client sends into what h2 reads, in pieces of any size.
struct Filter {
    /// Octets that go on as they come: the preface, or a frame that is none of ours.
    passing: usize,
    /// The beginning of a frame that has to be whole.
    held: Vec<u8>,
    /// The header block whose frames have not all come.
    block: Option<Block>,
    decoder: hpack::Decoder,
    /// The connection is over for h2; what follows is ignored.
    refused: bool,
}

struct Block {
    stream: u32,
    end_stream: u8,
    continuations: usize,
    octets: Vec<u8>,
}

impl Filter {
    fn new() -> Self {
        Self {
            passing: PREFACE,
            held: Vec::new(),
            block: None,
            decoder: hpack::Decoder::new(),
            refused: false,
        }
    }

    /// Appends to `output` what h2 is to read for `input`.
    fn feed(&mut self, input: &[u8], output: &mut Vec<u8>) {
        if self.refused {
            return;
        }
        let mut held = mem::take(&mut self.held);
        held.extend_from_slice(input);
        let mut rest = held.as_slice();
        loop {
            let (passed, next) = rest.split_at(self.passing.min(rest.len()));
            output.extend_from_slice(passed);
            self.passing -= passed.len();
            rest = next;
            let Some(head) = rest.first_chunk::<HEAD>() else {
                break;
            };
            let end = HEAD + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            // h2 refuses a frame for its length without regard to what it is.
            if end > HEAD + MAX_FRAME || (head[3] != HEADERS && self.block.is_none()) {
                self.passing = end;
                continue;
            }
            let Some(payload) = rest.get(HEAD..end) else {
                break;
            };
            if self.fragment(head, payload, output).is_none() {
                output.extend_from_slice(&REFUSAL);
                self.refused = true;
                return;
            }
            rest = &rest[end..];
        }
        self.held = rest.to_vec();
    }

    /// Takes a frame that begins a header block or comes amid one. `None` is a fault that
    /// ends the connection.
    fn fragment(&mut self, head: &[u8; HEAD], payload: &[u8], output: &mut Vec<u8>) -> Option<()> {
        let [_, _, _, kind, flags, stream @ ..] = *head;
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        let block = match self.block.take() {
            None => Block {
                stream,
                end_stream: flags & END_STREAM,
                continuations: 0,
                octets: strip(payload, flags)?.to_vec(),
            },
            Some(mut block) => {
                block.continuations += 1;
                block.octets.extend_from_slice(payload);
                let fits = kind == CONTINUATION
                    && stream == block.stream
                    && block.continuations <= MAX_CONTINUATIONS
                    && block.octets.len() <= MAX_BLOCK;
                fits.then_some(block)?
            }
        };
        if flags & END_HEADERS == 0 {
            self.block = Some(block);
        } else {
            block.write(&self.rewrite(&block.octets)?, output);
        }
        Some(())
    }

    /// The fields of a header block as literals, with an authority that h2 accepts.
    fn rewrite(&mut self, block: &[u8]) -> Option<Vec<u8>> {
        let mut literals = Vec::new();
        let mut size = 0;
        self.decoder.decode(block, |name, mut value| {
            // One octet may stand for a field of 4 KiB: what is dropped must cost nothing.
            if size > MAX_LIST {
                return;
            }
            if name == b":authority" && Authority::try_from(value).is_err() {
                // Not dropped, so that h2 still sees when there are two.
                value = b"localhost";
            }
            size += hpack::field_size(name, value);
            hpack::encode(name, value, &mut literals);
        })?;
        Some(literals)
    }
}

impl Block {
    /// Appends the frames that carry `fields` in the place of this block.
    fn write(&self, fields: &[u8], output: &mut Vec<u8>) {
        let (mut kind, mut flags, mut rest) = (HEADERS, self.end_stream, fields);
        loop {
            let (part, next) = rest.split_at(rest.len().min(MAX_FRAME));
            if next.is_empty() {
                flags |= END_HEADERS;
            }
            output.extend_from_slice(&(part.len() as u32).to_be_bytes()[1..]);
            output.extend_from_slice(&[kind, flags]);
            output.extend_from_slice(&self.stream.to_be_bytes());
            output.extend_from_slice(part);
            if next.is_empty() {
                return;
            }
            (kind, flags, rest) = (CONTINUATION, 0, next);
        }
    }
}

/// What the payload of a HEADERS frame holds besides padding and priority (RFC 9113, 6.2).
fn strip(mut payload: &[u8], flags: u8) -> Option<&[u8]> {
    let mut padding = 0;
    if flags & PADDED != 0 {
        padding = usize::from(*payload.split_off_first()?);
    }
    if flags & PRIORITY != 0 {
        payload.split_off(..5)?;
    }
    payload.get(..payload.len().checked_sub(padding)?)
}
