//! Sockets by path: what std has on Unix, and the same on Windows.

use std::io;

#[cfg(unix)]
pub(crate) use std::os::unix::net::{UnixListener, UnixStream};
#[cfg(unix)]
pub(super) use tokio::net::UnixListener as AsyncListener;
#[cfg(windows)]
pub(super) use windows::AsyncListener;
#[cfg(windows)]
pub(crate) use windows::{UnixListener, UnixStream};

/// To be called in a runtime.
#[cfg(unix)]
pub(super) fn into_async(listener: UnixListener) -> io::Result<AsyncListener> {
    listener.set_nonblocking(true)?;
    AsyncListener::from_std(listener)
}

#[cfg(windows)]
pub(super) fn into_async(listener: UnixListener) -> io::Result<AsyncListener> {
    listener.into_async()
}

#[cfg(windows)]
mod windows {
    use std::io;
    use std::net::TcpStream;
    use std::ops::{Deref, DerefMut};
    use std::path::Path;

    use socket2::{Domain, SockAddr, SockRef, Socket, Type};
    use tokio::io::Interest;

    /// It reads and writes like any other stream.
    pub(crate) struct UnixStream(TcpStream);

    impl UnixStream {
        pub(crate) fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.connect(&SockAddr::unix(path)?)?;
            Ok(Self(socket.into()))
        }
    }

    impl Deref for UnixStream {
        type Target = TcpStream;

        fn deref(&self) -> &TcpStream {
            &self.0
        }
    }

    impl DerefMut for UnixStream {
        fn deref_mut(&mut self) -> &mut TcpStream {
            &mut self.0
        }
    }

    pub(crate) struct UnixListener(Socket);

    impl UnixListener {
        pub(crate) fn bind(path: impl AsRef<Path>) -> io::Result<Self> {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            socket.bind(&SockAddr::unix(path)?)?;
            socket.listen(128)?;
            Ok(Self(socket))
        }

        pub(crate) fn accept(&self) -> io::Result<(UnixStream, SockAddr)> {
            let (client, address) = self.0.accept()?;
            Ok((UnixStream(client.into()), address))
        }

        pub(super) fn into_async(self) -> io::Result<AsyncListener> {
            self.0.set_nonblocking(true)?;
            tokio::net::TcpStream::from_std(self.0.into()).map(AsyncListener)
        }
    }

    pub(crate) struct AsyncListener(tokio::net::TcpStream);

    impl AsyncListener {
        pub(crate) async fn accept(&self) -> io::Result<(tokio::net::TcpStream, SockAddr)> {
            let socket = SockRef::from(&self.0);
            let (client, address) = self.0.async_io(Interest::READABLE, || socket.accept()).await?;
            client.set_nonblocking(true)?;
            Ok((tokio::net::TcpStream::from_std(client.into())?, address))
        }
    }
}
