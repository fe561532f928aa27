/* tgrad(1), printed from the tables of commands and options. */
#ifndef CLI_MAN_PAGE_H
#define CLI_MAN_PAGE_H

void cli_print_man_page(void);

#endif
