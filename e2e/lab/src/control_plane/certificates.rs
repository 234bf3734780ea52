//! The certificates of a control plane: one authority, one server, and clients on demand.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use crate::{control_plane::ControlPlaneError, node::address::GATEWAY, process::write_private};

/// The names of the API server: those that clients on this computer use, the first address of the service range, and the
/// name of its service. Nodes use the gateway of their network.
const SERVER_NAMES: [&str; 4] = ["localhost", "127.0.0.1", "10.0.0.1", "kubernetes.default.svc"];

/// A certificate and its key, both as PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The certificate authority of one control plane, and the files that its processes read.
pub(crate) struct Certificates {
    authority: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

impl Certificates {
    /// Creates the authority, the server's certificate and the key for service accounts, and writes them to `directory`.
    pub(crate) fn create(directory: &Path) -> Result<Self, ControlPlaneError> {
        let authority = authority().map_err(|source| certificate_error("the certificate authority", source))?;
        let certificates = Self { authority, directory: directory.to_owned() };
        certificates.write_all()?;
        Ok(certificates)
    }

    fn write_all(&self) -> Result<(), ControlPlaneError> {
        let server = self.server()?;
        // ECDSA, not the usual RSA: kube-apiserver accepts both, and ring cannot generate RSA keys.
        let service_accounts = KeyPair::generate().map_err(|source| certificate_error("service accounts", source))?;
        write_private(&self.authority_certificate_file(), &self.authority_certificate())?;
        write_private(&self.authority_key_file(), &self.authority.key().serialize_pem())?;
        write_private(&self.server_certificate_file(), &server.certificate)?;
        write_private(&self.server_key_file(), &server.key)?;
        let kubelets_client = self.client("kube-apiserver-kubelet-client", Some("system:masters"))?;
        write_private(&self.kubelets_client_certificate_file(), &kubelets_client.certificate)?;
        write_private(&self.kubelets_client_key_file(), &kubelets_client.key)?;
        write_private(&self.service_account_key_file(), &service_accounts.serialize_pem())?;
        Ok(write_private(&self.service_account_public_key_file(), &service_accounts.public_key_pem())?)
    }

    /// The authority's certificate as PEM.
    pub(crate) fn authority_certificate(&self) -> String {
        self.authority.pem()
    }

    pub(crate) fn authority_certificate_file(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    pub(crate) fn authority_key_file(&self) -> PathBuf {
        self.directory.join("ca.key")
    }

    pub(crate) fn server_certificate_file(&self) -> PathBuf {
        self.directory.join("server.crt")
    }

    pub(crate) fn server_key_file(&self) -> PathBuf {
        self.directory.join("server.key")
    }

    /// The certificate with which the API server calls kubelets.
    pub(crate) fn kubelets_client_certificate_file(&self) -> PathBuf {
        self.directory.join("kubelets-client.crt")
    }

    pub(crate) fn kubelets_client_key_file(&self) -> PathBuf {
        self.directory.join("kubelets-client.key")
    }

    pub(crate) fn service_account_key_file(&self) -> PathBuf {
        self.directory.join("service-accounts.key")
    }

    pub(crate) fn service_account_public_key_file(&self) -> PathBuf {
        self.directory.join("service-accounts.pub")
    }

    fn server(&self) -> Result<Identity, ControlPlaneError> {
        let names: Vec<_> = SERVER_NAMES.map(str::to_owned).into_iter().chain([GATEWAY.to_string()]).collect();
        let parameters = CertificateParams::new(names).map_err(|source| certificate_error("the server", source))?;
        self.sign(parameters, "kube-apiserver", None, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A client certificate for `user` as a member of `group`.
    pub(crate) fn client(&self, user: &str, group: Option<&str>) -> Result<Identity, ControlPlaneError> {
        self.sign(CertificateParams::default(), user, group, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut parameters: CertificateParams,
        name: &str,
        group: Option<&str>,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity, ControlPlaneError> {
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            parameters.distinguished_name.push(DnType::OrganizationName, group);
        }
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![usage];
        let sign = || {
            let key = KeyPair::generate()?;
            let certificate = parameters.signed_by(&key, &self.authority)?;
            Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
        };
        sign().map_err(|source| certificate_error(name, source))
    }
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, "nodewright local control plane");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    CertifiedIssuer::self_signed(parameters, KeyPair::generate()?)
}

fn certificate_error(subject: &str, source: rcgen::Error) -> ControlPlaneError {
    ControlPlaneError::Certificate { subject: subject.to_owned(), source }
}
