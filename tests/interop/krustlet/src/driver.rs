use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tokio::net::UnixListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use csi::identity_server::{Identity, IdentityServer};
use csi::{GetPluginInfoRequest, GetPluginInfoResponse};

#[allow(unreachable_pub, missing_debug_implementations)]
mod csi {
    tonic::include_proto!("csi.v1");
}

/// A CSI driver that serves until it is dropped.
pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) socket: PathBuf,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Driver {
    pub(crate) fn start(runtime: &Handle, name: &str, directory: &Path) -> anyhow::Result<Self> {
        let socket = directory.join(format!("{name}.sock"));
        // The listener belongs to the runtime that is entered.
        let _entered = runtime.enter();
        let listener = UnixListener::bind(&socket)
            .with_context(|| format!("failed to listen at {}", socket.display()))?;
        let server = Server::builder()
            .add_service(IdentityServer::new(Named(name.to_owned())))
            .serve_with_incoming(UnixListenerStream::new(listener));
        Ok(Self { name: name.to_owned(), socket, server: runtime.spawn(server) })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.server.abort();
    }
}

struct Named(String);

#[tonic::async_trait]
impl Identity for Named {
    async fn get_plugin_info(
        &self,
        _request: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse { name: self.0.clone(), ..Default::default() }))
    }
}
