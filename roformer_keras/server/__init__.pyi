from .app import create_app as create_app
from .options import ServerOptions as ServerOptions
