//! The socket, and what the server does with callers. The contract suite over the wire is in `e2e/lab`.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixStream},
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
