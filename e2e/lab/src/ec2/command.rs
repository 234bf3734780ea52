//! The command `nodewright-ec2`.

use std::{
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use nodewright_e2e_cloud::{
    accept,
    kubelet::{Fleet, Settings},
};
use nodewright_runtime::leadership::boot_clock;
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};
use tower::{BoxError, service_fn};

use crate::{
    cloud::command::{read_kubeconfig, seconds},
    ec2::{Ec2, Ec2Error, Faults, Moto, nodes},
    process::command::Shutdown,
};

/// Serve moto's EC2 as EC2 would be, with a kubelet for each virtual machine that runs, until Ctrl-C.
///
/// `GET /vms` lists all virtual machines as JSON; everything else is EC2's.
#[derive(Clone, Debug, clap::Parser)]
#[command(version)]
pub struct Arguments {
    /// URL of moto's server
    #[arg(long)]
    pub moto_url: String,
    /// Where to listen; port 0 for any free one, which is printed
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// The kubeconfig of the cluster that virtual machines join; without it they join none
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// A label of all nodes, as KEY=VALUE
    #[arg(long, value_parser = label)]
    pub node_label: Vec<(String, String)>,
    /// Seconds between two renewals of a node's Lease
    #[arg(long, default_value = "10", value_parser = seconds)]
    pub lease_seconds: Duration,
    /// Never register a deleted Node again
    #[arg(long)]
    pub never_register_again: bool,
    /// Run kubelets as with `--cloud-provider=external`
    #[arg(long)]
    pub external_cloud_provider: bool,
    /// What goes wrong
    #[command(flatten)]
    pub faults: Faults,
}

fn label(text: &str) -> Result<(String, String), String> {
    let split = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((split.0.to_owned(), split.1.to_owned()))
}

/// Runs the command. Returns an error if it cannot start.
pub async fn run(arguments: Arguments) -> Result<(), Ec2Error> {
    let stop = Shutdown::listen()?.graceful;
    let moto = Moto::new(&arguments.moto_url);
    let ec2 = Ec2::new(moto.clone(), arguments.faults.clone());
    let listener = TcpListener::bind(arguments.listen).await?;
    writeln!(io::stdout(), "EC2 listens at http://{}", listener.local_addr()?)?;
    let mut tasks = JoinSet::new();
    if let Some(fleet) = fleet(&arguments).await? {
        let labels = arguments.node_label.into_iter().collect();
        tasks.spawn(nodes::keep(moto.clone(), fleet, labels, arguments.external_cloud_provider));
    }
    tasks.spawn(serve(listener, ec2, moto));
    stop.cancelled().await;
    tasks.shutdown().await;
    Ok(())
}

/// Serves an EC2 until it is dropped.
pub async fn serve(listener: TcpListener, ec2: Ec2, moto: Moto) {
    let moto = Arc::new(moto);
    accept(listener, service_fn(move |request| handle(request, ec2.clone(), Arc::clone(&moto)))).await;
}

async fn fleet(arguments: &Arguments) -> Result<Option<Fleet>, Ec2Error> {
    let Some(path) = &arguments.kubeconfig else { return Ok(None) };
    let defaults = Settings::default();
    let settings = Settings {
        lease_period: arguments.lease_seconds,
        register_again_after: defaults.register_again_after.filter(|_| !arguments.never_register_again),
        ..defaults
    };
    Ok(Some(Fleet::start(read_kubeconfig(path).await?, settings, boot_clock())?))
}

/// An error closes the connection, and the answer is lost.
async fn handle(request: Request<Incoming>, ec2: Ec2, moto: Arc<Moto>) -> Result<Response<Full<Bytes>>, BoxError> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => (StatusCode::OK, Bytes::from("ok")),
        (&Method::GET, "/vms") => (StatusCode::OK, Bytes::from(listed(&moto).await?)),
        _ => {
            let (head, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            // What EC2 has begun it ends, also when its client has gone.
            tokio::spawn(ec2.answer(head.headers, body)).await?.ok_or("the answer is lost")?
        }
    };
    Ok(Response::builder().status(status).body(Full::new(body))?)
}

async fn listed(moto: &Moto) -> Result<String, Ec2Error> {
    let vms = moto.vms().await?;
    let shown = vms.iter().map(|vm| {
        json!({"id": vm.id, "state": vm.state, "type": vm.instance_type, "node": vm.private_dns_name, "tags": vm.tags})
    });
    Ok(json!({"items": shown.collect::<Vec<_>>()}).to_string())
}
