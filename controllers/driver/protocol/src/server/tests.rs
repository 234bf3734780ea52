//! The socket, and what the server does with callers. The contract suite over the wire is in `e2e/lab`.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::Path,
};

use super::Socket;

#[tokio::test]
async fn the_socket_is_the_users_alone_and_goes_with_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("driver.sock");
    let socket = Socket::bind(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let refused = Socket::bind(&path).unwrap_err().to_string();
    assert!(refused.contains("another process serves it"), "{refused}");
    assert!(UnixStream::connect(&path).is_ok(), "the first one still serves");
    drop(socket);
    assert!(!path.exists());
}

/// Files that another thread creates meanwhile have their own mode, and the process keeps its umask.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sockets_that_are_bound_at_once_are_each_the_users_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let usual = folder.path().join("usual");
    fs::write(&usual, "").unwrap();
    let usual = mode(&usual);
    let threads = (0..4).map(|thread| {
        let folder = folder.path().to_owned();
        tokio::spawn(async move {
            for round in 0..500 {
                let path = folder.join(format!("{thread}-{round}.sock"));
                let _socket = Socket::bind(&path).unwrap();
                assert_eq!(mode(&path), 0o600, "{}", path.display());
                let file = path.with_extension("txt");
                fs::write(&file, "").unwrap();
                assert_eq!(mode(&file), usual, "{}", file.display());
            }
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.await.unwrap();
    }
}

#[tokio::test]
async fn a_socket_that_was_left_is_replaced_and_another_file_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("driver.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "a process that is killed removes nothing");
    drop(Socket::bind(&path).unwrap());
    fs::write(&path, "notes").unwrap();
    assert!(Socket::bind(&path).unwrap_err().to_string().contains("another kind"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "notes");
}

#[tokio::test]
async fn a_server_removes_no_socket_of_its_successor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("driver.sock");
    let first = Socket::bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let _second = Socket::bind(&path).unwrap();
    drop(first);
    assert!(UnixStream::connect(&path).is_ok());
}
