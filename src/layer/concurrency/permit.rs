use std::sync::{Arc, Mutex, PoisonError};

use crate::lease::Permit;

/// The permit under which a request is served; in its extensions.
///
/// The layer gives it back when the response's body has ended. A handler that upgrades its connection takes the permit
/// and holds it for as long as it works: after the response the layer knows nothing of what goes on.
///
/// ```
/// use axum::{Extension, extract::Request, http::{StatusCode, header}, response::IntoResponse};
/// use hyper::upgrade::Upgraded;
/// use tollgate::layer::concurrency::RequestPermit;
///
/// async fn upgrade(Extension(permit): Extension<RequestPermit>, mut request: Request) -> impl IntoResponse {
///     let permit = permit.take();
///     let upgraded = hyper::upgrade::on(&mut request);
///     tokio::spawn(async move {
///         if let Ok(connection) = upgraded.await {
///             serve(connection).await;
///         }
///         drop(permit);
///     });
///     (StatusCode::SWITCHING_PROTOCOLS, [(header::CONNECTION, "upgrade"), (header::UPGRADE, "chat")])
/// }
///
/// async fn serve(connection: Upgraded) {
///     // as long as it takes
/// #   drop(connection);
/// }
/// # let _ = axum::Router::<()>::new().route("/chat", axum::routing::get(upgrade));
/// ```
#[derive(Clone, Debug)]
pub struct RequestPermit(Arc<Mutex<Option<Permit>>>);

impl RequestPermit {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Arc::new(Mutex::new(Some(permit))))
    }

    /// Takes the permit, so that it is held until it is dropped; nothing if it has been taken or given back.
    pub fn take(&self) -> Option<Permit> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns true if nobody has taken it.
    pub(super) fn is_there(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}
